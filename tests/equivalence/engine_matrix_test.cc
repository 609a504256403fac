// The same greedy tokens from the whole engine whatever its layout, step size, prefix cache, speculation and company. A
// position where the two best logits are nearer than rounding may differ where TP changes the sums; such positions are
// counted and printed. By default a sample of the matrix; with --all the whole of it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>

#include "../golden/golden_util.h"
#include "base/rng.h"
#include "cli/engine_run.h"
#include "cli/model_host.h"

namespace moesaic::testing {
namespace {

constexpr int kRequests = 6;
constexpr int32_t kOutput = 24;
constexpr double kTie = 2e-3;  // logits of TP shards differ by less
bool run_all = false;

struct Point {
  int ep, tp, chunk, speculation, batch;
  bool prefix_cache;
  std::string text() const {
    return str_cat("EP", ep, " TP", tp, " chunk ", chunk, " drafts ", speculation, " batch ", batch, " cache ",
                   prefix_cache ? "on" : "off");
  }
};

// Chats, random tokens and shared beginnings of different lengths, so that guesses are right, wrong and in between.
std::vector<Request> make_requests(const Tokenizer& tokenizer) {
  std::vector<Request> requests(kRequests);
  const std::vector<int32_t> chat =
      tokenizer.encode("<｜begin▁of▁sentence｜><｜User｜>What is 6 plus 6?<｜Assistant｜></think>");
  const std::vector<int32_t> tale = tokenizer.encode("Once upon a time there was a king who had three sons. ");
  for (int i = 0; i < kRequests; ++i) {
    std::vector<int32_t>& prompt = requests[i].prompt_ids;
    Rng rng(40 + i);
    for (int j = 0; j < 70 && i % 3 == 2; ++j) prompt.push_back(static_cast<int32_t>(rng.below(4000)));
    for (int copies = 0; copies < 1 + 3 * i; ++copies) prompt.insert(prompt.end(), tale.begin(), tale.end());
    if (i % 3 == 0) prompt = chat;
    requests[i].max_tokens = kOutput;
    requests[i].ignore_eos = true;
    requests[i].sampling.temperature = 0.0f;
    requests[i].num_logprobs = 2;
  }
  return requests;
}

struct Answer {
  std::vector<int32_t> ids;
  std::vector<double> margins;  // of the best over the second
};

std::vector<Answer> answers_at(const Point& point) {
  ModelSettings settings;
  settings.model_path = source_path(kTinyModel);
  settings.ep_size = point.ep;
  settings.tp_size = point.tp;
  settings.num_threads = 2;
  settings.context_length = 512;
  settings.max_total_tokens = 4096;
  settings.max_running_requests = 8;
  settings.chunked_prefill_size = point.chunk;
  settings.disable_radix_cache = !point.prefix_cache;
  settings.speculative_num_steps = point.speculation;
  settings.speculative_adaptive = false;
  auto host = ModelHost::load(settings, {});
  MOESAIC_CHECK(host.ok());
  std::vector<Request> requests = make_requests((*host)->tokenizer());
  // A second round meets what the first left in the cache.
  const size_t num_rounds = point.prefix_cache ? 2 : 1;
  for (size_t round = 1; round < num_rounds; ++round) {
    for (int i = 0; i < kRequests; ++i) requests.push_back(requests[i]);
  }
  std::vector<Answer> answers(requests.size());
  const absl::Status status =
      run_requests((*host)->engine(), std::move(requests), {.max_open = point.batch, .stop_wanted = {}},
                   [&](size_t index, const RequestOutput& output) {
                     Answer& answer = answers[index];
                     answer.ids.insert(answer.ids.end(), output.token_ids.begin(), output.token_ids.end());
                     for (const TokenLogprob& logprob : output.logprobs) {
                       answer.margins.push_back(logprob.top[0].second - logprob.top[1].second);
                     }
                   });
  EXPECT_TRUE(status.ok()) << status;
  (*host)->engine().drain(10'000);
  EXPECT_TRUE((*host)->engine().check_at_rest().ok()) << (*host)->engine().check_at_rest();
  return answers;
}

const std::vector<Answer>& reference() {
  static const std::vector<Answer> answers =
      answers_at({.ep = 1, .tp = 1, .chunk = 512, .speculation = 0, .batch = 1, .prefix_cache = false});
  return answers;
}

// Returns how many answers leave the reference at a tie.
int compare(const Point& point) {
  SCOPED_TRACE(point.text());
  const std::vector<Answer> answers = answers_at(point);
  int num_ties = 0;
  for (size_t i = 0; i < answers.size(); ++i) {
    const Answer& expected = reference()[i % kRequests];
    EXPECT_EQ(answers[i].ids.size(), static_cast<size_t>(kOutput));
    for (size_t p = 0; p < answers[i].ids.size(); ++p) {
      if (answers[i].ids[p] == expected.ids[p]) continue;
      const bool is_tie = point.tp > 1 && expected.margins[p] < kTie;
      EXPECT_TRUE(is_tie) << "request " << i << " position " << p << ": " << answers[i].ids[p] << ", expected "
                          << expected.ids[p] << " with margin " << expected.margins[p];
      num_ties += is_tie;
      break;  // what follows continues another text
    }
  }
  return num_ties;
}

std::vector<Point> points() {
  std::vector<Point> all;
  for (const auto& [ep, tp] : {std::pair{1, 1}, {2, 1}, {3, 1}, {4, 2}, {8, 8}, {32, 1}}) {
    for (const int chunk : {16, 100, 512}) {
      for (const bool prefix_cache : {false, true}) {
        for (const int speculation : {0, 1, 2, 3}) {
          for (const int batch : {1, 6}) all.push_back({ep, tp, chunk, speculation, batch, prefix_cache});
        }
      }
    }
  }
  if (run_all) return all;
  // Every value of every axis, in changing company.
  std::vector<Point> sample;
  Rng rng(7);
  for (size_t i = 0; i < all.size(); i += 1 + rng.below(32)) sample.push_back(all[i]);
  return sample;
}

TEST(EngineMatrix, SameGreedyTokens) {
  int num_ties = 0, num_points = 0;
  for (const Point& point : points()) {
    num_ties += compare(point);
    ++num_points;
    if (run_all) std::fprintf(stderr, "%d: %s\n", num_points, point.text().c_str());
  }
  RecordProperty("points", num_points);
  RecordProperty("answers_that_left_at_a_tie", num_ties);
  std::fprintf(stderr, "%d points, %d answers left the reference at a tie\n", num_points, num_ties);
  EXPECT_GE(num_points, 12);
}

}  // namespace
}  // namespace moesaic::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) moesaic::testing::run_all |= std::strcmp(argv[i], "--all") == 0;
  return RUN_ALL_TESTS();
}
