// check_request: what a request must satisfy before the engine queues it. Any thread.
#pragma once

#include "base/status.h"
#include "engine/engine.h"

namespace moesaic {

// INVALID_ARGUMENT: names the field, what was found, the limit and the option that sets it.
absl::Status check_request(const Request& request, const EngineOptions& options, bool has_tokenizer);

}  // namespace moesaic
