// The refusals of the operations, under the name that the files of this folder include: kernels/cuda/args_check.h.
#pragma once

#include "kernels/cuda/args_check.h"
