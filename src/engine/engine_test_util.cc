#include "engine/engine_test_util.h"

#include <algorithm>
#include <chrono>

#include "base/check.h"
#include "base/rng.h"

namespace moesaic {
namespace {

const std::vector<std::string> kWords = {"ABC", "DEF", "HI", "JK", "Gx"};

uint64_t mix(uint64_t a, uint64_t b) {
  return Rng(a * 0x100000001b3ull ^ b).next_u64();
}

}  // namespace

FakeExecutor::FakeExecutor(const EngineOptions& options)
    : block_tokens_(options.kv_block_tokens),
      vocab_size_(options.vocab_size),
      max_tokens_(options.max_tokens_per_step),
      rows_(options.dp_size, std::vector<uint64_t>(options.num_kv_blocks * options.kv_block_tokens)),
      logits_(options.dp_size),
      script_(options.hooks.script) {}

absl::Status FakeExecutor::execute(const StepPlan& plan, StepLogits* logits) {
  if (on_step) on_step(plan);
  logits->vocab_size = vocab_size_;
  logits->groups.clear();
  for (size_t group = 0; group < plan.groups.size(); ++group) {
    logits_[group].clear();
    int64_t num_tokens = 0;
    for (const PlannedChunk& chunk : plan.groups[group].chunks) {
      run_chunk(static_cast<int>(group), chunk);
      num_tokens += chunk.num_tokens();
    }
    MOESAIC_CHECK_LE(num_tokens, max_tokens_);
    logits->groups.push_back(logits_[group]);
  }
  return absl::OkStatus();
}

size_t FakeExecutor::slot(const PlannedChunk& chunk, int32_t position) const {
  MOESAIC_CHECK_LT(position / block_tokens_, static_cast<int>(chunk.block_table.size()));
  return static_cast<size_t>(chunk.block_table[position / block_tokens_]) * block_tokens_ + position % block_tokens_;
}

void FakeExecutor::append_logits(uint64_t hash, std::vector<float>* logits) const {
  Rng rng(hash);
  for (int64_t id = 0; id < vocab_size_; ++id) {
    logits->push_back(id == kEos ? -5.0f : static_cast<float>(rng.uniform() * 8.0));
  }
}

void FakeExecutor::run_chunk(int group, const PlannedChunk& chunk) {
  const int32_t first_sampled = chunk.num_tokens() - chunk.num_logit_rows();
  // Before there is output.
  if (chunk.is_prefill && !script_.empty()) num_prompt_.try_emplace(chunk.request_id, chunk.num_total);
  for (int32_t i = 0; i < chunk.num_tokens(); ++i) {
    const int32_t position = chunk.kv_begin + i;
    rows_[group][slot(chunk, position)] = mix(mix(chunk.token_ids[i], position), chunk.is_prefill ? 1 : 2);
    if (max_draft_depth_ > 0) tokens_[group][slot(chunk, position)] = mix(chunk.token_ids[i], position);
    if (i < first_sampled) continue;
    uint64_t hash = 0;
    for (int32_t p = 0; p <= position; ++p) hash = mix(hash, rows_[group][slot(chunk, p)]);
    append_logits(hash, &logits_[group]);
  }
}

void FakeExecutor::enable_drafts(int max_depth, double probability) {
  max_draft_depth_ = max_depth;
  draft_probability_ = probability;
  tokens_ = draft_rows_ = std::vector<std::vector<uint64_t>>(rows_.size(), std::vector<uint64_t>(rows_[0].size()));
}

absl::Status FakeExecutor::draft(const StepPlan& plan, const DraftPlan& drafts, DraftTokens* tokens) {
  tokens->groups.assign(drafts.groups.size(), {});
  for (size_t group = 0; group < drafts.groups.size(); ++group) {
    const GroupDraft& draft = drafts.groups[group];
    tokens->groups[group].assign(draft.chunks.size() * drafts.depth, -1);
    size_t next = 0;
    for (size_t i = 0; i < draft.chunks.size(); ++i) {
      const DraftChunk& drafted = draft.chunks[i];
      const PlannedChunk& chunk = plan.groups[group].chunks[drafted.chunk];
      for (int32_t row = 0; row < drafted.num_rows; ++row, ++next) {
        const int32_t position = chunk.kv_begin + row;
        draft_rows_[group][slot(chunk, position)] = mix(draft.next_ids[next], position + 1);
      }
      if (drafted.depth == 0) continue;
      for (int32_t p = 0; p + 1 < chunk.kv_begin + drafted.num_rows; ++p) {
        num_wrong_draft_rows_ += draft_rows_[group][slot(chunk, p)] != tokens_[group][slot(chunk, p + 1)];
      }
      guess(static_cast<int>(group), chunk, drafted.num_rows, draft.next_ids[next - 1],
            std::span(tokens->groups[group]).subspan(i * drafts.depth, drafted.depth));
    }
  }
  return absl::OkStatus();
}

void FakeExecutor::guess(int group, const PlannedChunk& chunk, int32_t num_rows, int32_t next_id,
                         std::span<int32_t> guesses) {
  uint64_t hash = 0;
  int32_t position = 0;
  for (; position < chunk.kv_begin + num_rows; ++position) hash = mix(hash, rows_[group][slot(chunk, position)]);
  for (size_t level = 0; level < guesses.size(); ++level, ++position) {
    // A level of its own writes the cache row of what it continues; the first level's is the step's.
    if (level > 0) draft_rows_[group][slot(chunk, position - 1)] = mix(next_id, position);
    hash = mix(hash, mix(mix(next_id, position), 2));
    next_id = most_likely(hash, chunk, position + 1);
    if (Rng(hash ^ 99).uniform() >= draft_probability_) next_id = (next_id + 1) % 256;
    guesses[level] = next_id;
  }
}

// The token at `position`, where `hash` is that of the rows before it.
int32_t FakeExecutor::most_likely(uint64_t hash, const PlannedChunk& chunk, int32_t position) const {
  if (!script_.empty()) {
    const auto output = static_cast<size_t>(position - num_prompt_.at(chunk.request_id));
    if (output < script_.size()) return script_[output];
  }
  std::vector<float> logits;
  append_logits(hash, &logits);
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

std::unique_ptr<Tokenizer> byte_word_tokenizer() {
  // GPT-2's byte alphabet: printable bytes stand for themselves, the others for U+0100 and up.
  std::string vocab;
  int next = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    const int code = printable ? byte : 256 + next++;
    std::string text;
    if (code < 128) {
      text = static_cast<char>(code);
    } else {
      text = {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
    }
    if (text == "\"" || text == "\\") text = "\\" + text;
    vocab += str_cat(byte == 0 ? "" : ",", "\"", text, "\":", byte);
  }
  std::string added = str_cat(R"({"id":)", kEos,
                              R"(,"content":"<eos>","special":true,"single_word":false,"lstrip":false,)"
                              R"("rstrip":false,"normalized":false})");
  for (size_t i = 0; i < kWords.size(); ++i) {
    added += str_cat(R"(,{"id":)", 256 + i, R"(,"content":")", kWords[i],
                     R"(","special":false,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false})");
  }
  const std::string json =
      str_cat(R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[)", added,
              R"(],"normalizer":null,"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,)",
              R"("trim_offsets":true,"use_regex":false},"post_processor":null,)",
              R"("decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{)", vocab, R"(},"merges":[]}})");
  auto tokenizer = Tokenizer::parse(json, "");
  if (!tokenizer.ok()) internal::check_failed(__FILE__, __LINE__, "tokenizer", tokenizer.status().ToString());
  return *std::move(tokenizer);
}

std::vector<int32_t> ids_of(const std::vector<std::string>& pieces) {
  std::vector<int32_t> ids;
  for (const std::string& piece : pieces) {
    const auto word = std::find(kWords.begin(), kWords.end(), piece);
    if (word != kWords.end()) {
      ids.push_back(256 + static_cast<int32_t>(word - kWords.begin()));
      continue;
    }
    for (const char byte : piece) ids.push_back(static_cast<unsigned char>(byte));
  }
  return ids;
}

EngineOptions small_options() {
  EngineOptions options;
  options.context_length = 256;
  options.vocab_size = kEos + 1;
  options.eos_token_ids = {kEos};
  options.num_kv_blocks = 16;
  options.kv_block_tokens = 4;
  options.max_running_requests = 8;
  options.max_tokens_per_step = 32;
  return options;
}

Request make_request(RequestId id, std::vector<int32_t> prompt_ids, int32_t max_tokens) {
  Request request;
  request.id = id;
  request.prompt_ids = std::move(prompt_ids);
  request.max_tokens = max_tokens;
  request.sampling.temperature = 0.0f;
  return request;
}

std::vector<int32_t> make_prompt(RequestId id, int length) {
  Rng rng(id);
  std::vector<int32_t> ids;
  for (int i = 0; i < length; ++i) ids.push_back(static_cast<int32_t>(rng.below(256)));
  return ids;
}

OutputSink Collector::sink() {
  return [this](RequestOutput output) {
    std::lock_guard lock(mutex_);
    Result& result = results_[output.id];
    result.text += output.text;
    result.pieces.push_back(output.text);
    result.token_ids.insert(result.token_ids.end(), output.token_ids.begin(), output.token_ids.end());
    result.logprobs.insert(result.logprobs.end(), output.logprobs.begin(), output.logprobs.end());
    result.prompt_logprobs.insert(result.prompt_logprobs.end(), output.prompt_logprobs.begin(),
                                  output.prompt_logprobs.end());
    ++result.num_outputs;
    if (output.finish_reason != FinishReason::kNone) {
      ++result.num_finished;
      ++num_finished_;
    }
    result.last = std::move(output);
    changed_.notify_all();
  };
}

void Collector::wait(int count) {
  std::unique_lock lock(mutex_);
  const bool done = changed_.wait_for(lock, std::chrono::seconds(60), [&] { return num_finished_ >= count; });
  MOESAIC_CHECK(done);
}

void Collector::wait_for_token(RequestId id) {
  std::unique_lock lock(mutex_);
  const bool done = changed_.wait_for(lock, std::chrono::seconds(60), [&] { return !results_[id].token_ids.empty(); });
  MOESAIC_CHECK(done);
}

std::map<RequestId, Result> Collector::results() {
  std::lock_guard lock(mutex_);
  return results_;
}

}  // namespace moesaic
