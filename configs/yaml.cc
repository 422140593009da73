#include "configs/yaml.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "configs/checks.h"
#include "configs/fields.h"
#include "configs/paths.h"
#include "configs/scalars.h"
#include "configs/yaml_tree.h"
#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"
#include "orchestrator/base/utf8.h"

namespace orrery::configs {
namespace {

struct Mistake {
  Place place;
  std::string text;
};

std::string Join(const std::string& path, std::string_view key) {
  return path.empty() ? std::string(key) : fmt::format("{}.{}", path, key);
}

std::string JoinList(const std::vector<std::string_view>& words) {
  return fmt::format("{}", fmt::join(words, ", "));
}

// All sections that have a key of this name, as "sampling.top_p".
class KeyFinder {
 public:
  explicit KeyFinder(std::string_view key) : key_(key) {}

  template <typename T>
  void operator()(T& member, const Field& field) {
    if (field.key == key_) found_.push_back(Join(path_, field.key));
    if constexpr (Section<T>) {
      const std::string outer = std::exchange(path_, Join(path_, field.key));
      ForEach(member, *this);
      path_ = outer;
    }
  }

  const std::vector<std::string>& found() const { return found_; }

 private:
  const std::string_view key_;
  std::string path_;
  std::vector<std::string> found_;
};

// Fills settings from a tree; mistakes are collected and the default stays.
class Reader {
 public:
  Reader(std::vector<Mistake>& mistakes, Places& places) : mistakes_(mistakes), places_(places) {}

  template <Section T>
  void Read(const YamlNode& node, const std::string& path, const Field&, T& section);
  template <Section T>
  void Read(const YamlNode& node, const std::string& path, const Field& field,
            std::vector<T>& list);
  template <typename T>
  requires(!Section<T>) void Read(const YamlNode& node, const std::string& path, const Field& field,
                                  std::vector<T>& list);
  void Read(const YamlNode& node, const std::string& path, const Field& field, std::string& value);
  void Read(const YamlNode& node, const std::string& path, const Field& field, bool& value);
  void Read(const YamlNode& node, const std::string& path, const Field& field, int64_t& value);
  void Read(const YamlNode& node, const std::string& path, const Field& field, double& value);
  void Read(const YamlNode& node, const std::string& path, const Field& field,
            std::optional<double>& value);
  void Read(const YamlNode& node, const std::string& path, const Field& field,
            std::map<std::string, std::string>& map);

 private:
  void Report(const YamlNode& node, const std::string& path, const std::string& text) {
    mistakes_.push_back({node.place, path.empty() ? text : path + ": " + text});
  }

  template <typename T>
  bool Take(absl::StatusOr<T> result, const YamlNode& node, const std::string& path, T& value) {
    if (!result.ok()) {
      Report(node, path, StatusText(result.status()));
      return false;
    }
    value = *std::move(result);
    return true;
  }

  template <typename T>
  void CheckRange(const YamlNode& node, const std::string& path, const Field& field, T value) {
    if (Contains(field.range, static_cast<double>(value))) return;
    Report(node, path, fmt::format("{} should be {}", node.text, RangeText(field.range)));
  }

  bool IsMap(const YamlNode& node, const std::string& path);
  bool IsList(const YamlNode& node, const std::string& path);
  void CheckKeys(const YamlNode& map, const std::string& path,
                 const std::vector<std::string_view>& known);
  void ReportDuplicates(const YamlNode& map, const std::string& path);
  std::string UnknownKeyFix(const std::string& key, const std::string& path,
                            const std::vector<std::string_view>& known) const;

  std::vector<Mistake>& mistakes_;
  Places& places_;
};

// Visits the fields of one section and reads those that the map has.
struct SectionReader {
  const YamlNode& map;
  const std::string& path;
  Reader& reader;
  Places& places;
  std::vector<std::string_view> known = {};

  template <typename T>
  void operator()(T& member, const Field& field) {
    known.push_back(field.key);
    const YamlNode* node = map.Find(field.key);
    if (node == nullptr) return;
    const std::string key = Join(path, field.key);
    places.by_key[key] = node->place.Text();
    reader.Read(*node, key, field, member);
  }
};

template <Section T>
void Reader::Read(const YamlNode& node, const std::string& path, const Field&, T& section) {
  if (node.kind == YamlNode::Kind::kNull && node.tag.empty()) return;  // all keys commented out
  if (!IsMap(node, path)) return;
  SectionReader fields{node, path, *this, places_};
  ForEach(section, fields);
  CheckKeys(node, path, fields.known);
}

template <Section T>
void Reader::Read(const YamlNode& node, const std::string& path, const Field& field,
                  std::vector<T>& list) {
  if (node.kind == YamlNode::Kind::kNull && node.tag.empty()) return;
  if (!IsList(node, path)) return;
  for (size_t i = 0; i < node.items.size(); ++i) {
    const std::string key = Join(path, std::to_string(i));
    places_.by_key[key] = node.items[i].place.Text();
    Read(node.items[i], key, field, list.emplace_back());
  }
}

template <typename T>
requires(!Section<T>) void Reader::Read(const YamlNode& node, const std::string& path,
                                        const Field& field, std::vector<T>& list) {
  if (!IsList(node, path)) return;
  list.clear();
  for (size_t i = 0; i < node.items.size(); ++i) {
    Read(node.items[i], Join(path, std::to_string(i)), field, list.emplace_back());
  }
}

void Reader::Read(const YamlNode& node, const std::string& path, const Field& field,
                  std::string& value) {
  if (!Take(ReadText(node), node, path, value)) return;
  const auto& choices = field.choices;
  if (!choices.empty() && std::find(choices.begin(), choices.end(), value) == choices.end()) {
    const auto synonym = field.synonyms.find(value);
    const std::string near =
        synonym != field.synonyms.end() ? std::string(synonym->second) : Nearest(value, choices);
    Report(node, path,
           fmt::format("{} should be one of: {}{}", node.Describe(), JoinList(choices),
                       near.empty() ? "" : "; did you mean '" + near + "'?"));
  }
  if (field.rule == TextRule::kName && !IsName(value)) {
    Report(node, path,
           fmt::format("{} should be a name of letters, digits, '-', '_' and '.', not beginning "
                       "with '.'",
                       node.Describe()));
  }
}

void Reader::Read(const YamlNode& node, const std::string& path, const Field&, bool& value) {
  Take(ReadBool(node), node, path, value);
}

void Reader::Read(const YamlNode& node, const std::string& path, const Field& field,
                  int64_t& value) {
  if (Take(ReadInteger(node), node, path, value)) CheckRange(node, path, field, value);
}

void Reader::Read(const YamlNode& node, const std::string& path, const Field& field,
                  double& value) {
  if (Take(ReadNumber(node), node, path, value)) CheckRange(node, path, field, value);
}

void Reader::Read(const YamlNode& node, const std::string& path, const Field& field,
                  std::optional<double>& value) {
  value.reset();
  if (node.kind == YamlNode::Kind::kScalar && node.tag.empty() && node.text == "auto") return;
  const absl::StatusOr<double> number = ReadNumber(node);
  if (!number.ok()) return Report(node, path, StatusText(number.status()) + ", or auto");
  CheckRange(node, path, field, *number);
  value = *number;
}

void Reader::Read(const YamlNode& node, const std::string& path, const Field&,
                  std::map<std::string, std::string>& map) {
  if (!IsMap(node, path)) return;
  ReportDuplicates(node, path);
  map.clear();
  for (size_t i = 0; i < node.keys.size(); ++i) {
    const YamlNode& key = node.keys[i];
    const YamlNode& value = node.items[i];
    places_.by_key[Join(path, key.text)] = value.place.Text();
    Take(ReadText(value), value, Join(path, key.text), map[key.text]);
  }
}

bool Reader::IsMap(const YamlNode& node, const std::string& path) {
  if (node.kind == YamlNode::Kind::kMap && node.tag.empty()) return true;
  Report(node, path,
         node.tag.empty()
             ? fmt::format("is {}, should be a map of keys and values", node.Describe())
             : fmt::format("the tag '{}' is not used here; remove it", ShortenUtf8(node.tag, 60)));
  return false;
}

bool Reader::IsList(const YamlNode& node, const std::string& path) {
  if (node.kind == YamlNode::Kind::kList && node.tag.empty()) return true;
  Report(node, path,
         node.tag.empty()
             ? fmt::format("is {}, should be a list: [a, b], or lines that begin with -",
                           node.Describe())
             : fmt::format("the tag '{}' is not used here; remove it", ShortenUtf8(node.tag, 60)));
  return false;
}

void Reader::CheckKeys(const YamlNode& map, const std::string& path,
                       const std::vector<std::string_view>& known) {
  ReportDuplicates(map, path);
  for (const YamlNode& key : map.keys) {
    if (std::find(known.begin(), known.end(), key.text) != known.end()) continue;
    Report(key, Join(path, ShortenUtf8(key.text, 60)),
           "there is no such key" + UnknownKeyFix(key.text, path, known));
  }
}

void Reader::ReportDuplicates(const YamlNode& map, const std::string& path) {
  std::map<std::string_view, const YamlNode*> seen;
  for (const YamlNode& key : map.keys) {
    const auto [first, is_new] = seen.emplace(key.text, &key);
    if (is_new) continue;
    Report(key, Join(path, ShortenUtf8(key.text, 60)),
           fmt::format("the key is there already ({}); remove one", first->second->place.Text()));
  }
}

std::string Reader::UnknownKeyFix(const std::string& key, const std::string& path,
                                  const std::vector<std::string_view>& known) const {
  if (key == "<<") return "; merge keys are not supported, write the keys out or alias the section";
  KeyFinder finder(key);
  Experiment experiment;
  ForEach(experiment, finder);
  if (!finder.found().empty()) {
    return fmt::format("; did you mean {}?", fmt::join(finder.found(), " or "));
  }
  const std::string near = Nearest(key, known);
  if (!near.empty()) return fmt::format("; did you mean {}?", Join(path, near));
  return fmt::format("; there are: {}", JoinList(known));
}

absl::Status MistakesStatus(std::vector<Mistake> mistakes) {
  if (mistakes.empty()) return absl::OkStatus();
  std::stable_sort(mistakes.begin(), mistakes.end(), [](const Mistake& a, const Mistake& b) {
    return std::pair(a.place.line, a.place.column) < std::pair(b.place.line, b.place.column);
  });
  std::string text;
  for (const Mistake& mistake : mistakes) {
    if (!text.empty()) text += '\n';
    if (!mistake.place.source.empty()) text += mistake.place.Text() + ": ";
    text += mistake.text;
  }
  return absl::InvalidArgumentError(text);
}

absl::StatusOr<YamlNode> ReadRoot(std::string_view text, const std::string& file_name) {
  ASSIGN_OR_RETURN(YamlNode root, ParseYaml(text, file_name));
  if (root.kind == YamlNode::Kind::kNull) {
    return InvalidInput("{}: the file is empty; `orrery config --explain` prints every key",
                        file_name);
  }
  if (root.kind != YamlNode::Kind::kMap) {
    return InvalidInput(
        "{}: the file is {}, should be a map of sections, like 'run:' with "
        "indented keys below",
        root.place.Text(), root.Describe());
  }
  return root;
}

}  // namespace

absl::StatusOr<Experiment> ParseExperiment(std::string_view text, const std::string& file_name,
                                           std::span<const std::string> overrides) {
  ASSIGN_OR_RETURN(YamlNode root, ReadRoot(text, file_name));
  std::vector<Mistake> mistakes;
  for (const std::string& argument : overrides) {
    if (absl::Status status = ApplyOverride(argument, root); !status.ok()) {
      // The text names the argument already.
      mistakes.push_back({Place{}, StatusText(status)});
    }
  }
  Experiment experiment;
  Reader(mistakes, experiment.places).Read(root, "", Field("", ""), experiment);
  RETURN_IF_ERROR(MistakesStatus(std::move(mistakes)));
  RETURN_IF_ERROR(CheckExperiment(experiment));
  return experiment;
}

absl::StatusOr<Experiment> LoadExperiment(const std::string& path,
                                          std::span<const std::string> overrides) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  ASSIGN_OR_RETURN(Experiment experiment, ParseExperiment(text, path, overrides));
  ResolvePaths(std::filesystem::path(path).parent_path(), experiment);
  return experiment;
}

}  // namespace orrery::configs
