#include "orchestrator/data/jsonl.h"

#include <rapidjson/document.h>
#include <rapidjson/error/en.h>

#include <algorithm>
#include <optional>

#include "orchestrator/base/status.h"
#include "orchestrator/base/utf8.h"
#include "orchestrator/data/compressed_file.h"

namespace orrery::data {
namespace {

constexpr int kMaxDepth = 100;  // writing a value out again recurses
constexpr unsigned kParseFlags = rapidjson::kParseValidateEncodingFlag |
                                 rapidjson::kParseFullPrecisionFlag |
                                 rapidjson::kParseIterativeFlag;

// Deepest nesting of lists and objects; brackets in strings do not count.
int Depth(std::string_view json) {
  int depth = 0, deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      deepest = std::max(deepest, ++depth);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return deepest;
}

struct Failure {
  size_t offset;
  std::string what;
};

// What the parser itself would miss or misname.
std::optional<Failure> CheckText(std::string_view json) {
  if (const size_t bad = FindInvalidUtf8(json); bad != std::string_view::npos) {
    return Failure{bad, fmt::format("byte 0x{:02x} is not UTF-8; convert the file",
                                    static_cast<unsigned char>(json[bad]))};
  }
  if (const size_t zero = json.find('\0'); zero != std::string_view::npos) {
    return Failure{zero, "a zero byte; get the file again"};
  }
  if (Depth(json) > kMaxDepth) {
    return Failure{0, fmt::format("lists and objects nest deeper than {}", kMaxDepth)};
  }
  return std::nullopt;
}

std::optional<Failure> Parse(std::string_view json, rapidjson::Document& document) {
  if (std::optional<Failure> failure = CheckText(json)) return failure;
  document.Parse<kParseFlags>(json.data(), json.size());
  if (!document.HasParseError()) return std::nullopt;
  return Failure{document.GetErrorOffset(),
                 std::string("not JSON: ") + rapidjson::GetParseError_En(document.GetParseError())};
}

std::string PlaceOf(std::string_view text, size_t offset, const std::string& name,
                    int64_t first_line) {
  const std::string_view before = text.substr(0, offset);
  const size_t newline = before.rfind('\n');
  const size_t line_start = newline == std::string_view::npos ? 0 : newline + 1;
  return fmt::format("{}:{}: column {}", name,
                     first_line + std::count(before.begin(), before.end(), '\n'),
                     before.size() - line_start + 1);
}

bool Full(const std::vector<Prompt>& rows, int64_t limit) {
  return limit > 0 && static_cast<int64_t>(rows.size()) >= limit;
}

absl::Status AddRow(const rapidjson::Value& row, const RowMapper& mapper,
                    std::vector<Prompt>& rows) {
  ASSIGN_OR_RETURN(Prompt prompt, mapper.Map(row, static_cast<int64_t>(rows.size())));
  rows.push_back(std::move(prompt));
  return absl::OkStatus();
}

absl::Status ParseLine(std::string_view line, int64_t line_number, const std::string& name,
                       const RowMapper& mapper, std::vector<Prompt>& rows) {
  rapidjson::Document document;
  if (const std::optional<Failure> failure = Parse(line, document)) {
    return InvalidInput("{}: {}", PlaceOf(line, failure->offset, name, line_number), failure->what);
  }
  return Annotate(AddRow(document, mapper, rows), fmt::format("{}:{}", name, line_number));
}

absl::Status ParseLines(std::string_view text, const std::string& name, const RowMapper& mapper,
                        int64_t limit, std::vector<Prompt>& rows) {
  for (int64_t line_number = 1; !text.empty() && !Full(rows, limit); ++line_number) {
    const size_t newline = text.find('\n');
    const std::string_view line = text.substr(0, newline);
    text.remove_prefix(newline == std::string_view::npos ? text.size() : newline + 1);
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    RETURN_IF_ERROR(ParseLine(line, line_number, name, mapper, rows));
  }
  return absl::OkStatus();
}

absl::Status ParseList(std::string_view text, const std::string& name, const RowMapper& mapper,
                       int64_t limit, std::vector<Prompt>& rows) {
  rapidjson::Document document;
  if (const std::optional<Failure> failure = Parse(text, document)) {
    return InvalidInput("{}: {}", PlaceOf(text, failure->offset, name, 1), failure->what);
  }
  int64_t number = 0;
  for (const rapidjson::Value& row : document.GetArray()) {
    if (Full(rows, limit)) break;
    ++number;
    RETURN_IF_ERROR(Annotate(AddRow(row, mapper, rows), fmt::format("{}: row {}", name, number)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ParseJsonRows(std::string_view text, const std::string& name, const RowMapper& mapper,
                           int64_t limit, std::vector<Prompt>& rows) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  if (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff")) {
    return InvalidInput("{}: the file is UTF-16; convert it to UTF-8", name);
  }
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) {
    return InvalidInput("{}: the file is empty; it should have a JSON object a line", name);
  }
  return text[first] == '[' ? ParseList(text, name, mapper, limit, rows)
                            : ParseLines(text, name, mapper, limit, rows);
}

absl::Status ReadJsonRows(const std::string& path, const RowMapper& mapper, int64_t limit,
                          std::vector<Prompt>& rows) {
  ASSIGN_OR_RETURN(const std::string text, ReadDataFile(path));
  return ParseJsonRows(text, path, mapper, limit, rows);
}

}  // namespace orrery::data
