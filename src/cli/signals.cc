#include "cli/signals.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>

#include "base/check.h"

namespace moesaic {
namespace {

constexpr int kExitInterrupted = 130;

std::atomic<bool> g_drain{false};
std::atomic<int> g_num_signals{0};
int g_pipe[2] = {-1, -1};

// Only async-signal-safe calls.
void on_signal(int) {
  if (!g_drain.load()) _exit(0);
  if (g_num_signals.fetch_add(1) > 0) _exit(kExitInterrupted);
  const char byte = 1;
  [[maybe_unused]] const ssize_t written = write(g_pipe[1], &byte, 1);
}

}  // namespace

StopSignals::StopSignals() {
  MOESAIC_CHECK_EQ(pipe2(g_pipe, O_CLOEXEC | O_NONBLOCK), 0);
  struct sigaction action = {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

void StopSignals::expect_drain() {
  g_drain.store(true);
}

bool StopSignals::stop_wanted() const {
  return g_num_signals.load() > 0;
}

bool StopSignals::wait(int64_t timeout_ms) const {
  pollfd waited = {.fd = g_pipe[0], .events = POLLIN, .revents = 0};
  poll(&waited, 1, static_cast<int>(timeout_ms));
  return stop_wanted();
}

}  // namespace moesaic
