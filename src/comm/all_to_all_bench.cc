// Time of one layer's dispatch and combine without experts, per rank count, mode and tokens; and of the Communicator's
// operations. One line a figure: name, microseconds.
#include <cstdio>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "comm/all_to_all.h"
#include "comm/test_ranks.h"

namespace moesaic {
namespace {

struct Shape {
  int num_ranks;
  int num_tokens;
  A2aMode mode;
  int num_threads;
  bool fp8;
};

void run_layers(AllToAll& a2a, Stream& stream, const Shape& shape, const AllToAllOptions& options, int num_layers) {
  Rng rng(1);
  const int64_t n = shape.num_tokens, topk = options.num_experts_per_tok;
  std::vector<float> x(n * options.hidden, 1.0f), y(x.size()), weights(n * topk, 0.25f);
  std::vector<int32_t> ids(n * topk);
  for (int32_t& id : ids) id = static_cast<int32_t>(rng.below(options.num_slots));
  const Tensor out(y.data(), DType::kF32, {n, options.hidden});
  const DispatchArgs args{.x = Tensor(x.data(), DType::kF32, {n, options.hidden}),
                          .topk_ids = Tensor(ids.data(), DType::kI32, {n, topk}),
                          .topk_weights = Tensor(weights.data(), DType::kF32, {n, topk})};
  ExpertRows rows;
  for (int i = 0; i < num_layers; ++i) {
    bool ok = a2a.dispatch_send(stream, shape.mode, args).ok();
    ok = ok && a2a.dispatch_recv(stream, &rows).ok() && a2a.combine_send(stream).ok();
    ok = ok && a2a.combine_recv(stream, out).ok();
    MOESAIC_CHECK(ok);
  }
}

double measure_us(const Shape& shape, bool small) {
  const AllToAllOptions options{.num_ranks = shape.num_ranks,
                                .num_slots = 32,
                                .hidden = 256,
                                .num_experts_per_tok = 4,
                                .max_tokens_normal = shape.num_tokens,
                                .max_tokens_low_latency = shape.num_tokens,
                                .fp8 = shape.fp8};
  auto members = *make_thread_all_to_all(options);
  const int64_t rows = int64_t{shape.num_ranks} * shape.num_tokens;
  const int num_layers = static_cast<int>((small ? 100 : 200'000) / (rows + 9) + 10);
  int64_t elapsed_ns = 0;
  run_ranks(shape.num_ranks, [&](int rank) {
    ThreadPool pool(shape.num_threads);
    Stream stream(pool);
    run_layers(*members[rank], stream, shape, options, 10);
    const int64_t start_ns = real_clock().now_ns();
    run_layers(*members[rank], stream, shape, options, num_layers);
    if (rank == 0) elapsed_ns = real_clock().now_ns() - start_ns;
  });
  return static_cast<double>(elapsed_ns) * 1e-3 / num_layers;
}

double measure_barrier_us(int num_ranks, bool small) {
  auto members = make_thread_communicators(num_ranks, {});
  const int count = small ? 100 : 20'000;
  int64_t elapsed_ns = 0;
  run_ranks(num_ranks, [&](int rank) {
    const int64_t start_ns = real_clock().now_ns();
    for (int i = 0; i < count; ++i) MOESAIC_CHECK(members[rank]->barrier().ok());
    if (rank == 0) elapsed_ns = real_clock().now_ns() - start_ns;
  });
  return static_cast<double>(elapsed_ns) * 1e-3 / count;
}

void run(bool small) {
  for (int num_ranks : {1, 2, 4, 8, 32}) {
    std::printf("barrier ranks=%d: %.2f us\n", num_ranks, measure_barrier_us(num_ranks, small));
  }
  const A2aMode low = A2aMode::kLowLatency, normal = A2aMode::kNormal;
  const Shape shapes[] = {{1, 1, low, 1, false},       {1, 1, low, 1, true},        {1, 8, low, 1, false},
                          {1, 1800, normal, 1, false}, {1, 1800, normal, 2, false}, {2, 1, low, 1, false},
                          {4, 1, low, 1, false},       {4, 8, low, 1, false},       {4, 512, normal, 1, false},
                          {4, 512, normal, 1, true},   {32, 1, low, 1, false},      {32, 64, normal, 1, false}};
  for (const Shape& shape : shapes) {
    std::printf("layer ranks=%d tokens=%d %s threads=%d fp8=%d: %.2f us\n", shape.num_ranks, shape.num_tokens,
                shape.mode == low ? "low_latency" : "normal", shape.num_threads, shape.fp8, measure_us(shape, small));
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace moesaic

int main(int argc, char** argv) {
  moesaic::run(argc > 1 && std::string_view(argv[1]) == "--small");
}
