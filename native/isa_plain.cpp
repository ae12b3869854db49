// The kernels for plain. Compiled with this instruction set's flags: includes no std:: header that defines functions.
#define OCTAVO_ISA_NS plain
#define OCTAVO_ISA_NAME "plain"
#define OCTAVO_ISA_PLAIN 1

#include "kernels/table-inl.h"
