// The kernels for neon. Compiled with this instruction set's flags: includes no std:: header that defines functions.
#define OCTAVO_ISA_NS neon
#define OCTAVO_ISA_NAME "neon"
#define OCTAVO_ISA_NEON 1

#include "kernels/table-inl.h"
