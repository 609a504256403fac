// A checkpoint of any shape with random weights: to measure speed and memory at sizes that no test data has. Names,
// dtypes and shapes are those of Hugging Face's files; values are Gaussian with variance 1 / k, so that activations
// keep their size. The text that such a model writes means nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/model_config.h"
#include "tensor/tensor.h"

namespace moesaic {

struct TensorSpec {
  std::string name;
  DType dtype;
  Shape shape;
};

// Every tensor of a checkpoint with this config, layer by layer: embedding, layers (MTP modules last), norm, head.
// Linear weights are e4m3 with scales if config.fp8_weights, else bf16.
std::vector<TensorSpec> checkpoint_tensors(const ModelConfig& config);

struct RandomCheckpoint {
  std::string config_path;                          // config.json
  std::string out_dir;                              // made if missing; must hold no checkpoint
  std::string tokenizer_dir;                        // its tokenizer files are copied; empty: none
  uint64_t seed = 0;                                // same seed, same bytes
  std::function<void(int64_t num_bytes)> progress;  // bytes written since the last call
};

// One safetensors file of at most about a gigabyte after the other, with an index; memory stays at one file. Errors: a
// config that cannot be read, a folder that holds a checkpoint, a file that cannot be written.
absl::Status write_random_checkpoint(const RandomCheckpoint& args);

}  // namespace moesaic
