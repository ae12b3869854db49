// Which kernels this process may run: what was compiled in, what the processor has, what the operating system saves.
#pragma once

#include <string>
#include <vector>

#include "kernels.h"

namespace octavo {

// Best first; "plain" is always the last.
std::vector<std::string> available_isas();

// The table of `isa`, or of the best one when it is empty. Throws std::invalid_argument that lists those available.
const Kernels& kernels_for(const std::string& isa);

}  // namespace octavo
