// What the tests of the run directory share: a folder of their own, and made-up steps.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "orchestrator/base/hash.h"
#include "orchestrator/base/status.h"
#include "orchestrator/run/samples.h"
#include "orchestrator/types.h"

#define ASSERT_OK(expression)                                                   \
  do {                                                                          \
    const absl::Status result_of_expression = (expression);                     \
    ASSERT_TRUE(result_of_expression.ok()) << StatusText(result_of_expression); \
  } while (false)
#define ASSERT_OK_AND_ASSIGN(lhs, expression) \
  ASSERT_OK_AND_ASSIGN_INNER(ORRERY_CONCAT(status_or_, __LINE__), lhs, expression)
#define ASSERT_OK_AND_ASSIGN_INNER(temporary, lhs, expression)   \
  auto temporary = (expression);                                 \
  ASSERT_TRUE(temporary.ok()) << StatusText(temporary.status()); \
  lhs = *std::move(temporary)

namespace orrery::run {

class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "orrery-run-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~TempFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// A folder whose disk is full after `bytes`: a tmpfs of that size, or, where nothing may be
// mounted, a limit on the size of a file.
class TinyDisk {
 public:
  explicit TinyDisk(size_t bytes) {
    const std::string size = "size=" + std::to_string(bytes);
    mounted_ = ::mount("tmpfs", folder_.path().c_str(), "tmpfs", 0, size.c_str()) == 0;
    if (mounted_) return;
    old_handler_ = ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &old_limit_);
    const rlimit limit{bytes, old_limit_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~TinyDisk() {
    if (mounted_) {
      ::umount2(folder_.path().c_str(), MNT_DETACH);
    } else {
      ::setrlimit(RLIMIT_FSIZE, &old_limit_);
      ::signal(SIGXFSZ, old_handler_);
    }
  }
  // What the system says when it is full.
  const char* reason() const { return mounted_ ? "No space left on device" : "File too large"; }
  const std::string& path() const { return folder_.path(); }
  std::string operator/(const std::string& name) const { return folder_ / name; }

 private:
  TempFolder folder_;
  bool mounted_;
  rlimit old_limit_{};
  void (*old_handler_)(int) = nullptr;
};

// A folder nobody may write into: a read-only tmpfs, or by its mode where nothing may be mounted
// (which root passes over; then usable() is false).
class ReadOnlyFolder {
 public:
  ReadOnlyFolder() {
    mounted_ = ::mount("tmpfs", folder_.path().c_str(), "tmpfs", MS_RDONLY, nullptr) == 0;
    if (!mounted_) ::chmod(folder_.path().c_str(), 0555);
  }
  ~ReadOnlyFolder() {
    if (mounted_) ::umount2(folder_.path().c_str(), MNT_DETACH);
    if (!mounted_) ::chmod(folder_.path().c_str(), 0755);
  }
  bool usable() const { return mounted_ || ::geteuid() != 0; }
  const char* reason() const { return mounted_ ? "Read-only file system" : "Permission denied"; }
  const std::string& path() const { return folder_.path(); }
  std::string operator/(const std::string& name) const { return folder_ / name; }

 private:
  TempFolder folder_;
  bool mounted_;
};

inline void Put(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

inline std::string Get(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Runs `body` in a child process and returns its wait status.
template <typename Body>
int InChild(const Body& body) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    body();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  return status;
}

// Pieces "<id> ", with a byte that is no UTF-8 for ids divisible by 7 and markup for those by 11.
inline std::vector<std::string> TestPieces(std::span<const int32_t> ids) {
  std::vector<std::string> pieces;
  for (const int32_t id : ids) {
    std::string piece = std::to_string(id) + " ";
    if (id % 7 == 0) piece += '\xff';
    if (id % 11 == 0) piece += "</script><b>&\n";
    pieces.push_back(piece);
  }
  return pieces;
}

inline Segment RandomSegment(RandomStream& random, Author author) {
  Segment segment;
  segment.author = author;
  const size_t length = 1 + random.Below(30);
  for (size_t i = 0; i < length; ++i) {
    segment.token_ids.push_back(static_cast<int32_t>(random.Below(1000)));
    if (author != Author::kPolicy) continue;
    segment.logprobs.push_back(-static_cast<float>(random.Uniform() * 9));
    segment.versions.push_back(5 + i / 10);
  }
  return segment;
}

inline Episode RandomEpisode(RandomStream& random, uint64_t group_id, int index) {
  Episode episode;
  episode.episode_id = group_id * 100 + static_cast<uint64_t>(index);
  episode.group_id = group_id;
  episode.index_in_group = index;
  episode.seed = random.Next();
  Sample sample;
  sample.segments = {RandomSegment(random, Author::kPrompt),
                     RandomSegment(random, Author::kPolicy)};
  if (index % 3 == 1) {
    sample.segments.push_back(RandomSegment(random, Author::kTool));
    sample.segments.push_back(RandomSegment(random, Author::kTemplate));
    sample.segments.push_back(RandomSegment(random, Author::kPolicy));
    episode.num_turns = 2;
  }
  sample.finish_reason = index % 4 == 3 ? FinishReason::kLength : FinishReason::kStop;
  episode.samples = {sample};
  for (const std::string& piece : TestPieces(sample.segments.back().token_ids)) {
    episode.response_text += piece;
  }
  episode.status = EpisodeStatus::kScored;
  episode.outcome = Outcome::Scored(random.Uniform(), "the answer 7 was found after ####");
  episode.outcome.parts = {{"gsm8k_strict", random.Uniform()}, {"format", 0.1}};
  episode.advantage = random.Uniform() - 0.5;
  return episode;
}

inline std::vector<EpisodeGroup> RandomGroups(uint64_t seed, int groups = 3, int episodes = 5) {
  RandomStream random(seed);
  std::vector<EpisodeGroup> made;
  for (int g = 0; g < groups; ++g) {
    EpisodeGroup& group = made.emplace_back();
    group.group_id = seed * 1000 + static_cast<uint64_t>(g);
    group.prompt.id = "train/" + std::to_string(g);
    group.prompt.messages = {{"system", "Think."}, {"user", "What is 3 + \"4\"?\n</script>"}};
    group.prompt.answer = "7";
    group.prompt.metadata = {{"level", "2"}, {"source", "made\tup"}};
    for (int i = 0; i < episodes; ++i) {
      group.episodes.push_back(RandomEpisode(random, group.group_id, i));
    }
  }
  return made;
}

}  // namespace orrery::run
