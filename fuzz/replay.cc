// The main function of a fuzz target built without libFuzzer: runs it on every file of the given
// folder, and on copies of it that are cut short and changed at seeded places. The same inputs each
// time.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

constexpr int kChangedCopies = 200;

void Run(const std::string& input) {
  // A copy of exactly this size, so that the address sanitizer sees a read past its end.
  const std::vector<uint8_t> bytes(input.begin(), input.end());
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

std::string Change(std::string input, std::mt19937& random) {
  const int edits = 1 + random() % 4;
  for (int i = 0; i < edits && !input.empty(); ++i) {
    const size_t at = random() % input.size();
    switch (random() % 4) {
      case 0:
        input[at] = static_cast<char>(random());
        break;
      case 1:
        input.erase(at, 1 + random() % 8);
        break;
      case 2:
        input.insert(at, input.substr(random() % input.size(), random() % 32));
        break;
      default:
        input.resize(at);
    }
  }
  return input;
}

int RunFolder(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::mt19937 random(20260501);
  for (const auto& file : files) {
    std::ifstream stream(file, std::ios::binary);
    const std::string input{std::istreambuf_iterator<char>(stream), {}};
    Run(input);
    for (int i = 0; i < kChangedCopies; ++i) Run(Change(input, random));
  }
  return static_cast<int>(files.size());
}

}  // namespace

int main(int argc, char** argv) {
  Run("");
  int files = 0;
  for (int i = 1; i < argc; ++i) {
    if (!std::filesystem::is_directory(argv[i])) {
      std::fprintf(stderr, "no folder %s: a fuzz target needs seeds there\n", argv[i]);
      return 1;
    }
    files += RunFolder(argv[i]);
  }
  std::printf("%d corpus files, %d changed copies of each: no crash\n", files, kChangedCopies);
  return files > 0 ? 0 : 1;
}
