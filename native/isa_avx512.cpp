// The kernels for avx512. Compiled with this instruction set's flags: includes no std:: header that defines functions.
#define OCTAVO_ISA_NS avx512
#define OCTAVO_ISA_NAME "avx512"
#define OCTAVO_ISA_AVX512 1

#include "kernels/table-inl.h"
