#include "text/vocab.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "text/utf8.h"

namespace moesaic {

namespace {

// GPT-2's table: printable Latin-1 bytes stand for themselves, the other 68 for U+0100 and up, in order.
constexpr std::array<int16_t, 0x144> kByteOfCodePoint = [] {
  std::array<int16_t, 0x144> table{};
  table.fill(-1);
  int next = 0x100;
  for (int b = 0; b < 256; ++b) {
    const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    table[printable ? b : next++] = static_cast<int16_t>(b);
  }
  return table;
}();

uint32_t hash_bytes(std::string_view bytes) {
  uint64_t h = 0x9E3779B97F4A7C15ull ^ bytes.size();
  const auto mix = [&h](uint64_t word) {
    h = (h ^ word) * 0xD6E8FEB86659FD93ull;
    h ^= h >> 32;
  };
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + i, 8);
    mix(word);
  }
  uint64_t tail = 0;
  std::memcpy(&tail, bytes.data() + i, bytes.size() - i);
  mix(tail);
  return static_cast<uint32_t>(h);
}

}  // namespace

bool bytes_of_spelling(std::string_view spelled, std::string& bytes) {
  bytes.clear();
  while (!spelled.empty()) {
    const Utf8Step step = utf8_step(spelled);
    if (!step.valid || step.code_point >= kByteOfCodePoint.size()) return false;
    const int16_t byte = kByteOfCodePoint[step.code_point];
    if (byte < 0) return false;
    bytes += static_cast<char>(byte);
    spelled.remove_prefix(step.length);
  }
  return true;
}

void Vocab::reserve(size_t num_tokens, size_t num_bytes) {
  entries_.reserve(std::min<size_t>(num_tokens, kMaxId + 1));
  arena_.reserve(num_bytes);
  grow(std::bit_ceil(std::max<size_t>(16, 2 * num_tokens)));
}

void Vocab::grow(size_t num_slots) {
  std::vector<Slot> old = std::move(slots_);
  slots_.assign(num_slots, Slot{});
  for (const Slot& slot : old) {
    if (slot.id >= 0) slots_[slot_of(bytes(slot.id), slot.hash)] = slot;
  }
}

size_t Vocab::slot_of(std::string_view bytes_wanted, uint32_t hash) const {
  const size_t mask = slots_.size() - 1;
  size_t i = hash & mask;
  while (slots_[i].id >= 0 && (slots_[i].hash != hash || bytes(slots_[i].id) != bytes_wanted)) i = (i + 1) & mask;
  return i;
}

bool Vocab::store(int32_t id, std::string_view bytes) {
  if (id >= size()) entries_.resize(id + 1);
  if (entries_[id].present) return false;
  entries_[id] = {static_cast<uint32_t>(arena_.size()), static_cast<uint32_t>(bytes.size()), true};
  arena_ += bytes;
  return true;
}

bool Vocab::add(int32_t id, std::string_view spelled) {
  std::string raw;
  if (!bytes_of_spelling(spelled, raw)) {
    return unspelled_.emplace(std::string(spelled), id).second && store(id, spelled);
  }
  if (2 * (num_found_ + 1) > slots_.size()) grow(std::max<size_t>(16, 2 * slots_.size()));
  const uint32_t hash = hash_bytes(raw);
  const size_t slot = slot_of(raw, hash);
  if (slots_[slot].id >= 0 || !store(id, raw)) return false;
  slots_[slot] = {hash, id};
  ++num_found_;
  return true;
}

bool Vocab::add_text(int32_t id, std::string_view text) {
  if (has(id)) return bytes(id) == text;
  return store(id, text);
}

int32_t Vocab::find_bytes(std::string_view bytes) const {
  return slots_.empty() ? -1 : slots_[slot_of(bytes, hash_bytes(bytes))].id;
}

int32_t Vocab::find_spelled(std::string_view spelled) const {
  std::string raw;
  if (bytes_of_spelling(spelled, raw)) return find_bytes(raw);
  const auto it = unspelled_.find(std::string(spelled));
  return it == unspelled_.end() ? -1 : it->second;
}

bool Vocab::has(int32_t id) const {
  return id >= 0 && id < size() && entries_[id].present;
}

std::string_view Vocab::bytes(int32_t id) const {
  if (!has(id)) return {};
  return std::string_view(arena_).substr(entries_[id].offset, entries_[id].length);
}

}  // namespace moesaic
