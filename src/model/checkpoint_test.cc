// Checkpoints that are damaged or hostile are refused by name; what is written is read back.
#include "model/checkpoint.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include <unistd.h>

#include "model/file_map.h"
#include "model/safetensors.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

class TempDir {
 public:
  TempDir() : path_(fs::path(::testing::TempDir()) / str_cat("checkpoint_", getpid())) {
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~TempDir() { fs::remove_all(path_); }
  std::string file(const std::string& name) const { return (path_ / name).string(); }
  std::string path() const { return path_.string(); }

 private:
  fs::path path_;
};

void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string header_file(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + std::string(data_bytes, 'x');
}

// Three shards of one tensor each, t0 to t2, of 4 KB.
class Shards : public ::testing::Test {
 protected:
  Shards() {
    for (int i = 0; i < 3; ++i) write_shard(i, str_cat("t", i));
    write_index({{"t0", 0}, {"t1", 1}, {"t2", 2}});
  }
  static std::string shard_name(int i) { return str_cat("model-0000", i + 1, "-of-00003.safetensors"); }
  void write_shard(int i, const std::string& tensor) {
    std::vector<float> values(1024, static_cast<float>(i));
    ASSERT_TRUE(
        write_safetensors(dir_.file(shard_name(i)), {{tensor, Tensor(values.data(), DType::kF32, {32, 32})}}).ok());
  }
  void write_index(const std::vector<std::pair<std::string, int>>& entries) {
    std::string map;
    for (const auto& [name, shard] : entries) {
      map += str_cat(map.empty() ? "" : ",", "\"", name, "\":\"", shard_name(shard), "\"");
    }
    write_text(dir_.file("model.safetensors.index.json"), str_cat("{\"weight_map\":{", map, "}}"));
  }
  void expect_refused(const std::vector<std::string>& words) {
    const auto opened = Checkpoint::open(dir_.path());
    ASSERT_FALSE(opened.ok());
    for (const std::string& word : words) {
      EXPECT_NE(std::string(opened.status().message()).find(word), std::string::npos) << opened.status();
    }
  }
  TempDir dir_;
};

TEST_F(Shards, AllThere) {
  const auto opened = Checkpoint::open(dir_.path());
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ((*opened)->names(), (std::vector<std::string>{"t0", "t1", "t2"}));
  EXPECT_EQ((*opened)->num_bytes(), 3 * 4096);
  const Tensor t2 = *(*opened)->tensor("t2", {32, 32});
  (*opened)->release(t2);
  EXPECT_EQ(t2.f32()[1023], 2.0f);  // read again after the release
  EXPECT_EQ((*opened)->tensor("t3").status().code(), absl::StatusCode::kNotFound);
  const absl::Status wrong = (*opened)->tensor("t1", {32, 31}).status();
  EXPECT_NE(std::string(wrong.message()).find("t1: expected shape [32, 31]"), std::string::npos) << wrong;
}

TEST_F(Shards, MissingShard) {
  fs::remove(dir_.file(shard_name(1)));
  expect_refused({shard_name(1), "is missing"});
}

TEST_F(Shards, ShardCutByOneKilobyte) {
  fs::resize_file(dir_.file(shard_name(2)), fs::file_size(dir_.file(shard_name(2))) - 1024);
  expect_refused({shard_name(2), "t2", "truncated"});
}

TEST_F(Shards, TensorRemovedFromItsShard) {
  write_shard(0, "other");
  expect_refused({"t0", "absent from shard", shard_name(0)});
}

TEST_F(Shards, IndexPromisesWhatNoShardHolds) {
  write_index({{"t0", 0}, {"t1", 1}, {"t2", 2}, {"t3", 1}});
  expect_refused({"t3", "absent from shard", shard_name(1)});
}

TEST_F(Shards, HostileIndexes) {
  const std::string index = dir_.file("model.safetensors.index.json");
  for (const char* text : {"", "{}", "[]", "{\"weight_map\":{}}", "{\"weight_map\":{\"a\":1}}", "{\"weight_map\":[1]}",
                           "{\"weight_map\":{\"a\":\"../x\"}}", "{\"weight_map\":{\"a\":\"/etc/passwd\"}}",
                           "{\"weight_map\":{\"a\":\"\"}}", "{\"weight_map\":{\"a\":\"..\"}}"}) {
    write_text(index, text);
    EXPECT_FALSE(Checkpoint::open(dir_.path()).ok()) << text;
  }
  write_text(index, str_cat("{\"weight_map\":{\"t0\":\"", shard_name(0), "\",\"t0\":\"", shard_name(1), "\"}}"));
  expect_refused({"t0 occurs twice"});
}

TEST(Checkpoint, WithoutIndexOneFileIsNeeded) {
  TempDir dir;
  EXPECT_EQ(Checkpoint::open(dir.path()).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Checkpoint::open(dir.file("nowhere")).status().code(), absl::StatusCode::kNotFound);
}

TEST(Safetensors, HostileHeaders) {
  const auto one = [](const char* dtype, const char* shape, const char* offsets) {
    return header_file(
        str_cat("{\"a\":{\"dtype\":\"", dtype, "\",\"shape\":", shape, ",\"data_offsets\":", offsets, "}}"), 64);
  };
  const auto expect_refused = [](const std::string& file, std::string_view word) {
    const auto parsed = parse_safetensors(file);
    ASSERT_FALSE(parsed.ok()) << file.substr(8);
    EXPECT_NE(std::string(parsed.status().message()).find(word), std::string::npos) << parsed.status();
  };
  expect_refused(one("F32", "[17]", "[0,68]"), "64 bytes of data");
  expect_refused(one("F32", "[4]", "[-16,0]"), "non-negative");
  expect_refused(one("F32", "[4]", "[16,0]"), "reversed");
  expect_refused(one("F32", "[4]", "[9223372036854775808,9223372036854775824]"), "data_offsets end");
  expect_refused(one("F32", "[4]", "[0,18446744073709551616]"), "");
  expect_refused(one("F32", "[4]", "[0.0,16.0]"), "non-negative");
  expect_refused(one("F32", "[4]", "[0]"), "data_offsets");
  expect_refused(one("F32", "[4]", "[0,15]"), "needs 16");
  expect_refused(one("F32", "[-4]", "[0,16]"), "dimensions");
  expect_refused(one("F32", "[9223372036854775808]", "[0,16]"), "dimensions");
  expect_refused(one("F32", "[1099511627776,1099511627776]", "[0,16]"), "2^40");
  expect_refused(one("F32", "[1,1,1,1,4]", "[0,16]"), "at most 4 dimensions");
  expect_refused(one("F32", "\"4\"", "[0,16]"), "'shape'");
  expect_refused(one("F64", "[2]", "[0,16]"), "found F64");
  expect_refused(one("f32", "[4]", "[0,16]"), "found f32");
  const char* a = "{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]},\"";
  expect_refused(header_file(str_cat(a, "b\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[7,15]}}"), 64),
                 "overlap");
  expect_refused(header_file(str_cat(a, "a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[8,16]}}"), 64), "twice");
  expect_refused(header_file("{\"a\":{\"dtype\":\"U8\",\"shape\":[8]}}", 64), "data_offsets");
  expect_refused(header_file("{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8],\"x\":1}}", 64), "'x'");
  expect_refused(header_file("{\"a\":1}", 64), "expected an object");
  expect_refused(header_file("[]", 64), "not a JSON object");
  expect_refused(header_file("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[1,5]}}", 64),
                 "multiple of the 4");
  expect_refused(std::string(8, '\xff'), "header of at most");
  expect_refused(header_file("", 0), "");
}

TEST(Safetensors, TruncatedAtEveryByte) {
  TempDir dir;
  std::vector<float> f(6, 1.5f);
  std::vector<uint8_t> u(5, 7);
  const std::string path = dir.file("model.safetensors");
  ASSERT_TRUE(
      write_safetensors(path, {{"f", Tensor(f.data(), DType::kF32, {2, 3})}, {"u", Tensor(u.data(), DType::kU8, {5})}})
          .ok());
  const std::string whole = *read_text_file(path, 1 << 20);
  ASSERT_TRUE(parse_safetensors(whole).ok());
  for (size_t size = 0; size < whole.size(); ++size) {
    const std::string cut(whole.data(), size);  // its own allocation: reads beyond the end are seen by ASan
    EXPECT_FALSE(parse_safetensors(cut).ok()) << size << " of " << whole.size() << " bytes";
  }
}

TEST(Safetensors, RoundTrip) {
  TempDir dir;
  std::vector<uint8_t> bytes(256);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i);
  std::vector<uint64_t> memory(32);
  std::memcpy(memory.data(), bytes.data(), 256);
  void* p = memory.data();
  const std::map<std::string, Tensor> written = {
      {"f32", Tensor(p, DType::kF32, {4, 8})},     {"bf16", Tensor(p, DType::kBF16, {3, 5, 2})},
      {"e4m3", Tensor(p, DType::kE4M3, {16, 16})}, {"i32", Tensor(p, DType::kI32, {2, 2, 2, 2})},
      {"i64", Tensor(p, DType::kI64, {32})},       {"quote\" and \\", Tensor(p, DType::kU8, {8})},
      {"empty", Tensor(p, DType::kF32, {0, 3})}};
  ASSERT_TRUE(write_safetensors(dir.file("model.safetensors"), written).ok());
  const auto opened = Checkpoint::open(dir.path());
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ((*opened)->names().size(), written.size());
  for (const auto& [name, tensor] : written) {
    const auto read = (*opened)->tensor(name, tensor.shape());
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->dtype(), tensor.dtype());
    EXPECT_EQ(std::memcmp(read->raw(), tensor.raw(), tensor.num_bytes()), 0) << name;
  }
  EXPECT_FALSE(write_safetensors(dir.file("no/such/dir/x"), written).ok());
}

}  // namespace
}  // namespace moesaic
