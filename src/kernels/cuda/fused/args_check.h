#pragma once

#include "kernels/cuda/args_check.h"
