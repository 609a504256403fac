#include "kernels/kernel_table.h"

#include "base/strings.h"

namespace moesaic {
namespace {

// Names of devices and types hold no control characters; quotes and backslashes are escaped all the same.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

std::string row_json(const KernelRow& row) {
  return str_cat("{\"op\": ", quoted(row.op), ", \"m\": ", row.m, ", \"n\": ", row.n, ", \"k\": ", row.k,
                 ", \"groups\": ", row.groups, ", \"batch\": ", row.batch, ", \"heads\": ", row.heads,
                 ", \"q_len\": ", row.q_len, ", \"kv_len\": ", row.kv_len, ", \"dtype\": ", quoted(row.dtype),
                 ", \"us\": ", row.us, "}");
}

}  // namespace

std::string to_json(const KernelTable& table) {
  std::string out =
      str_cat("{\"device\": ", quoted(table.device), ", \"clocks\": ", quoted(table.clocks), ", \"rows\": [");
  for (size_t i = 0; i < table.rows.size(); ++i) out += str_cat(i == 0 ? "\n  " : ",\n  ", row_json(table.rows[i]));
  return out + "\n]}\n";
}

}  // namespace moesaic
