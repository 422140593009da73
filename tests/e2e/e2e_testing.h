// What the end-to-end tests share: the built binary as a child process, folders and experiments of
// their own, and comparisons of run directories.
//
// ORRERY_BINARY is the binary's path. Output goes to files, so that no child waits for a reader.
#pragma once

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace orrery::e2e {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

inline std::string Get(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void Put(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

inline std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

inline std::string StartModel() {
  return std::string(ORRERY_SOURCE_DIR) + "/examples/story_math/start";
}

class TempFolder {
 public:
  TempFolder() {
    std::string name = (fs::temp_directory_path() / "orrery-e2e-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~TempFolder() {
    std::error_code error;
    fs::remove_all(path_, error);
  }
  TempFolder(const TempFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

struct Ended {
  int code = -1;  // exit code; -1 where a signal or the time limit ended it
  int signal = 0;
  bool in_time = true;
  std::string out, err;
};

inline std::ostream& operator<<(std::ostream& stream, const Ended& ended) {
  return stream << "exit code " << ended.code << ", signal " << ended.signal
                << (ended.in_time ? "" : ", killed at the time limit") << "\n--- stdout\n"
                << ended.out << "\n--- stderr\n"
                << ended.err;
}

// One child. Killed where the test forgets it.
class Process {
 public:
  explicit Process(const Words& words) {
    const std::string out = output_ / "out", err = output_ / "err";
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, 1, out.c_str(), O_WRONLY | O_CREAT, 0600);
    posix_spawn_file_actions_addopen(&files, 2, err.c_str(), O_WRONLY | O_CREAT, 0600);
    std::vector<char*> argv;
    for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    const int error = ::posix_spawnp(&pid_, argv[0], &files, nullptr, argv.data(), environ);
    posix_spawn_file_actions_destroy(&files);
    EXPECT_EQ(error, 0) << "cannot start " << words[0];
    if (error != 0) pid_ = -1;
  }
  ~Process() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }
  Process(const Process&) = delete;

  void Signal(int signal) const {
    if (pid_ > 0) ::kill(pid_, signal);
  }
  std::string err() const { return Get(output_ / "err"); }
  // Whether it still runs.
  bool Runs() {
    if (pid_ <= 0) return false;
    int status = 0;
    if (::waitpid(pid_, &status, WNOHANG) != pid_) return true;
    Note(status);
    return false;
  }
  Ended Wait(double seconds = kPatience) {
    const auto end = Clock::now() + std::chrono::duration<double>(seconds);
    while (Runs()) {
      if (Clock::now() > end) {
        ended_.in_time = false;
        ::kill(pid_, SIGKILL);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    ended_.out = Get(output_ / "out");
    ended_.err = err();
    return ended_;
  }

  // For what takes a second on an idle machine.
  static constexpr double kPatience = 240;

 private:
  using Clock = std::chrono::steady_clock;

  void Note(int status) {
    pid_ = -1;
    if (WIFEXITED(status)) ended_.code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) ended_.signal = WTERMSIG(status);
  }

  TempFolder output_;
  pid_t pid_ = -1;
  Ended ended_;
};

inline Words OrreryWords(const Words& arguments) {
  Words words = {ORRERY_BINARY};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return words;
}

inline Ended Orrery(const Words& arguments) { return Process(OrreryWords(arguments)).Wait(); }

// Waits until `what` holds; false after the time limit.
template <typename What>
bool Await(const What& what, double seconds = Process::kPatience) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!what()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// story_math at a size that a step takes some ten milliseconds. `folder` gets experiment NAME.yaml
// and the run NAME.
inline std::string SmallExperiment(const TempFolder& folder, const std::string& name,
                                   int64_t steps) {
  const std::string path = folder / (name + ".yaml");
  std::ofstream(path) << "run: {name: " << name << ", directory: " << folder.path()
                      << ", seed: 7, threads: 2, steps: " << steps << "}\n"
                      << "model: {path: " << StartModel() << "}\n"
                      << R"(data: {source: story_math, chat: false, prompt_template: "{prompt}\n"}
story_math: {templates: 6, rows: 4000}
sampling: {max_new_tokens: 26}
rollout: {prompts_per_step: 4, samples_per_prompt: 4}
rewards: [{name: gsm8k_strict}]
algorithm: {aggregation: token_mean}
optimizer: {learning_rate: 5e-4, min_learning_rate: 1e-4, schedule: linear, warmup_steps: 2}
trainer: {micro_batch_tokens: 256}
checkpoint: {every: 2}
evals:
  - name: greedy
    every: 3
    data: {source: story_math, split: test, limit: 8, chat: false, prompt_template: "{prompt}\n"}
)";
  return path;
}

// name -> value, of one line of metrics.jsonl (flat: names to numbers).
inline std::map<std::string, double> Metrics(const std::string& line) {
  static const std::regex kEntry("\"([^\"]+)\":(-?[0-9][^,}]*|null)");
  std::map<std::string, double> values;
  for (std::sregex_iterator it(line.begin(), line.end(), kEntry), end; it != end; ++it) {
    values[(*it)[1]] = std::strtod((*it)[2].str().c_str(), nullptr);
  }
  return values;
}

// metrics.jsonl without the timings, which alone may differ between two runs.
inline std::string Curve(const std::string& run) {
  static const std::regex kTiming(",\"perf/[^,}]*");
  return std::regex_replace(Get(run + "/metrics.jsonl"), kTiming, "");
}

// The names in a folder, and what files hold.
inline std::map<std::string, std::string> Files(const std::string& folder) {
  std::map<std::string, std::string> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string path = entry.path().string();
    files[entry.path().filename().string()] = entry.is_regular_file() ? Get(path) : "";
  }
  return files;
}

inline Words Names(const std::map<std::string, std::string>& files) {
  Words names;
  for (const auto& [name, content] : files) names.push_back(name);
  return names;
}

inline void ExpectSameFiles(const std::string& a, const std::string& b) {
  const auto files = Files(a), others = Files(b);
  EXPECT_FALSE(files.empty()) << a;
  ASSERT_EQ(Names(files), Names(others)) << a << " and " << b;
  for (const auto& [name, content] : files) {
    EXPECT_TRUE(content == others.at(name)) << name << " of " << a << " and " << b << " differ";
  }
}

// Curve, samples and the checkpoint of `step`, byte by byte.
inline void ExpectSameRun(const std::string& a, const std::string& b, int64_t step) {
  EXPECT_EQ(Curve(a), Curve(b));
  ExpectSameFiles(a + "/samples", b + "/samples");
  const std::string checkpoint = "/checkpoints/step-" + std::to_string(step);
  ExpectSameFiles(a + checkpoint, b + checkpoint);
}

inline size_t StepsDone(const std::string& run) {
  const std::string text = Get(run + "/metrics.jsonl");
  return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
}

}  // namespace orrery::e2e
