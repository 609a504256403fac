// ChoiceWriter: turns the engine's outputs of one choice into its part of the answer, as chunks while it streams or as
// one piece at the end. Used by one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "engine/engine.h"
#include "serve/http/prepared_request.h"

namespace moesaic {

// Gets the JSON of one choice of a chunk.
using EmitChoice = std::function<void(std::string_view)>;

class ChoiceWriter {
 public:
  virtual ~ChoiceWriter() = default;
  // Never kError. With `emit` the news goes out as chunks, the last one with the finish_reason; without, it is kept.
  virtual void add(RequestOutput output, const EmitChoice& emit) = 0;
  // The whole choice, after its last output, when nothing was emitted.
  virtual void append_choice(std::string& out) const = 0;
};

// `prepared` and `model` are borrowed.
std::unique_ptr<ChoiceWriter> make_chat_choice(int64_t index, const PreparedRequest& prepared,
                                               const ServedModel& model);
std::unique_ptr<ChoiceWriter> make_text_choice(int64_t index, const PreparedRequest& prepared,
                                               const PreparedPrompt& prompt, const ServedModel& model);

}  // namespace moesaic
