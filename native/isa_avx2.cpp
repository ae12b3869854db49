// The kernels for avx2. Compiled with this instruction set's flags: includes no std:: header that defines functions.
#define OCTAVO_ISA_NS avx2
#define OCTAVO_ISA_NAME "avx2"
#define OCTAVO_ISA_AVX2 1

#include "kernels/table-inl.h"
