// Runs the scenarios in src/sched/scenarios: text files that hold a configuration, events, and below a line "---" the
// plan of every step. `sched_test --update` writes what the scheduler does now into the files, for review in the diff.
//
//   dp=1 blocks=16 block_tokens=4 running=8 tokens=16 [logit_rows=0] [cache=1] [mixed=1] [delay=0] [aging=1000]
//     [balance_prefill]
//   @0 add r1 prompt=12 max=4 [priority=0] [deadline=STEP] [queue_deadline=STEP] [logits]
//     [common=TOKENS of all requests' prompts] [salt=N] [nocache] [draft=TOKENS a step] [accept=of these]
//   @3 abort r1            (before step 3 is planned)
//   @3 abort_in_step r1    (between plan and apply)
#include <algorithm>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "base/strings.h"
#include "gtest/gtest.h"
#include "sched/scheduler.h"

namespace moesaic {
namespace {

bool update_files = false;

struct Event {
  int64_t step = 0;
  std::string action;
  RequestId id = 0;
  std::map<std::string, int64_t> values;
};

struct Scenario {
  std::string head;  // everything above "---"
  std::string expected;
  SchedulerOptions options;
  std::vector<Event> events;
};

std::map<std::string, int64_t> parse_values(std::istringstream& words) {
  std::map<std::string, int64_t> values;
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    values[word.substr(0, equals)] = equals == std::string::npos ? 1 : std::stoll(word.substr(equals + 1));
  }
  return values;
}

void parse_line(const std::string& line, Scenario* scenario) {
  std::istringstream words(line);
  if (line.empty() || line[0] == '#') return;
  if (line[0] != '@') {
    const auto values = parse_values(words);
    SchedulerOptions& options = scenario->options;
    options.dp_size = static_cast<int>(values.at("dp"));
    options.num_kv_blocks = static_cast<int>(values.at("blocks"));
    options.kv_block_tokens = static_cast<int>(values.at("block_tokens"));
    options.max_running_requests = static_cast<int>(values.at("running"));
    options.max_tokens_per_step = values.at("tokens");
    const auto value = [&](const char* name, int64_t otherwise) {
      return values.contains(name) ? values.at(name) : otherwise;
    };
    options.max_logit_rows_per_step = value("logit_rows", 0);
    options.prefix_cache = value("cache", 1) != 0;
    options.mixed_steps = value("mixed", 1) != 0;
    options.prefill_delay_steps = static_cast<int>(value("delay", 0));
    options.priority_aging_steps = value("aging", 1000);
    if (values.contains("balance_prefill")) options.balance = Balance::kPrefill;
    return;
  }
  Event event;
  char at = 0;
  char r = 0;
  words >> at >> event.step >> event.action >> r >> event.id;
  event.values = parse_values(words);
  scenario->events.push_back(event);
}

Scenario read_scenario(const std::filesystem::path& path) {
  Scenario scenario;
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line) && line != "---") {
    scenario.head += line + "\n";
    parse_line(line, &scenario);
  }
  std::ostringstream rest;
  rest << file.rdbuf();
  scenario.expected = rest.str();
  return scenario;
}

Request make_request(const Event& event) {
  const auto value = [&](const char* name, int64_t otherwise) {
    const auto found = event.values.find(name);
    return found == event.values.end() ? otherwise : found->second;
  };
  Request request;
  request.id = event.id;
  request.prompt_ids.assign(value("prompt", 1), static_cast<int32_t>(event.id));
  std::fill_n(request.prompt_ids.begin(), value("common", 0), 0);
  request.max_tokens = static_cast<int32_t>(value("max", 1));
  request.priority = static_cast<int32_t>(value("priority", 0));
  request.deadline_ns = value("deadline", request.deadline_ns);
  request.queue_deadline_ns = value("queue_deadline", request.queue_deadline_ns);
  request.prompt_logprobs = event.values.contains("logits");
  request.use_prefix_cache = !event.values.contains("nocache");
  if (event.values.contains("salt")) request.cache_salt = str_cat("salt ", value("salt", 0));
  return request;
}

class ScenarioRun {
 public:
  explicit ScenarioRun(const Scenario& scenario) : scenario_(scenario), scheduler_(scenario.options) {}

  std::string run() {
    for (int64_t step = 0; step < 1000; ++step) {
      fire(step, false);
      if (!scheduler_.has_work() && step > last_event()) break;
      const StepPlan& plan = scheduler_.plan(step);
      if (!plan.empty()) text_ += plan.to_string();
      for (const FailedRequest& failed : scheduler_.failures()) {
        text_ += str_cat("  r", failed.request_id, " failed: ", failed.error.message(), "\n");
      }
      if (plan.empty()) continue;
      fire(step, true);
      apply(plan);
    }
    for (int group = 0; group < scheduler_.dp_size(); ++group) {
      EXPECT_TRUE(scheduler_.pool(group).check_at_rest().ok()) << scheduler_.pool(group).check_at_rest();
      EXPECT_TRUE(scheduler_.prefix_index(group).check_consistent().ok());
    }
    return text_;
  }

 private:
  int64_t last_event() const {
    int64_t last = 0;
    for (const Event& event : scenario_.events) last = std::max(last, event.step);
    return last;
  }

  void fire(int64_t step, bool in_step) {
    for (const Event& event : scenario_.events) {
      if (event.step != step) continue;
      if (event.action == "add" && !in_step) scheduler_.add(make_request(event));
      if (event.action == (in_step ? "abort_in_step" : "abort")) {
        text_ += str_cat("  r", event.id, scheduler_.finish(event.id) ? " aborted\n" : " is unknown\n");
      }
    }
  }

  const Event& added(RequestId id) const {
    return *std::find_if(scenario_.events.begin(), scenario_.events.end(),
                         [&](const Event& event) { return event.id == id && event.action == "add"; });
  }

  int64_t value(RequestId id, const char* name) const {
    const auto& values = added(id).values;
    return values.contains(name) ? values.at(name) : 0;
  }

  // Every request emits 1000, 1001 ...; of its drafts the first `accept` are right.
  void apply(const StepPlan& plan) {
    std::vector<SampledTokens> sampled;
    std::deque<std::vector<int32_t>> ids;
    std::string ended;
    for (const GroupPlan& group : plan.groups) {
      for (const PlannedChunk& chunk : group.chunks) {
        const Sequence* sequence = scheduler_.find(chunk.request_id);
        if (sequence == nullptr || chunk.kv_end() < chunk.num_total) continue;
        const int64_t num_output = std::ssize(sequence->output_ids);
        const int64_t num_right = std::min<int64_t>(value(chunk.request_id, "accept"), chunk.num_draft);
        std::vector<int32_t>& tokens = ids.emplace_back();
        for (int64_t i = 0; chunk.samples && i <= num_right; ++i) {
          tokens.push_back(static_cast<int32_t>(1000 + num_output + i));
        }
        const bool finished = num_output + std::ssize(tokens) == sequence->request.max_tokens;
        if (finished) {
          const int32_t num_cached = sequence->num_cached_tokens;
          ended += str_cat("  r", chunk.request_id, " done", num_cached > 0 ? str_cat(", ", num_cached, " cached") : "",
                           "\n");
        }
        sampled.push_back({chunk.request_id, tokens, finished});
      }
    }
    scheduler_.apply(sampled);
    for (const SampledTokens& result : sampled) {
      const std::vector<int32_t> drafts(value(result.request_id, "draft"), 7);
      scheduler_.set_draft(result.request_id, drafts);
    }
    text_ += ended;
  }

  const Scenario& scenario_;
  Scheduler scheduler_;
  std::string text_;
};

std::vector<std::filesystem::path> scenario_files() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(MOESAIC_SOURCE_DIR "/src/sched/scenarios")) {
    if (entry.path().extension() == ".txt") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

TEST(ScenarioTest, PlansAreAsWritten) {
  const auto files = scenario_files();
  ASSERT_GE(files.size(), 8u);
  for (const auto& file : files) {
    SCOPED_TRACE(file.filename().string());
    const Scenario scenario = read_scenario(file);
    const std::string found = ScenarioRun(scenario).run();
    if (update_files) {
      std::ofstream(file) << scenario.head << "---\n" << found;
    } else {
      EXPECT_EQ(found, scenario.expected) << "`sched_test --update` rewrites the file";
    }
  }
}

}  // namespace
}  // namespace moesaic

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--update") moesaic::update_files = true;
  }
  return RUN_ALL_TESTS();
}
