// Runs the scenarios in src/sched/scenarios: text files that hold a configuration, events, and below a line "---" the
// plan of every step. `sched_test --update` writes what the scheduler does now into the files, for review in the diff.
//
//   dp=1 blocks=16 block_tokens=4 running=8 tokens=16 [logit_rows=0]
//   @0 add r1 prompt=12 max=4 [priority=0] [deadline=STEP] [logits]
//   @3 abort r1            (before step 3 is planned)
//   @3 abort_in_step r1    (between plan and apply)
#include <algorithm>
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
    if (values.contains("logit_rows")) options.max_logit_rows_per_step = values.at("logit_rows");
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
  request.max_tokens = static_cast<int32_t>(value("max", 1));
  request.priority = static_cast<int32_t>(value("priority", 0));
  request.deadline_ns = value("deadline", request.deadline_ns);
  request.prompt_logprobs = event.values.contains("logits");
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

  void apply(const StepPlan& plan) {
    std::vector<SampledToken> sampled;
    std::string ended;
    for (const GroupPlan& group : plan.groups) {
      for (const PlannedChunk& chunk : group.chunks) {
        const Sequence* sequence = scheduler_.find(chunk.request_id);
        if (sequence == nullptr || chunk.kv_end() < chunk.num_total) continue;
        SampledToken token{.request_id = chunk.request_id};
        if (chunk.samples) token.token_id = 1000 + static_cast<int32_t>(sequence->output_ids.size());
        token.finished =
            static_cast<int32_t>(sequence->output_ids.size()) + (chunk.samples ? 1 : 0) == sequence->request.max_tokens;
        if (token.finished) ended += str_cat("  r", chunk.request_id, " done\n");
        sampled.push_back(token);
      }
    }
    scheduler_.apply(sampled);
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
