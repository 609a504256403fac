#include "base/rng.h"

#include <random>

namespace moesaic {

uint64_t entropy_seed() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

}  // namespace moesaic
