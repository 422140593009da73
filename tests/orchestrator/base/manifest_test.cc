#include "orchestrator/base/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "orchestrator/base/checksum.h"
#include "orchestrator/base/file.h"
#include "orchestrator/base/hash.h"
#include "orchestrator/base/status.h"

namespace orrery {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string RandomBytes(size_t size, uint64_t seed) {
  RandomStream random(seed);
  std::string bytes(size, '\0');
  for (char& c : bytes) c = static_cast<char>(random.Next());
  return bytes;
}

uint64_t Hash(std::string_view content) {
  return ChecksumOfPiece(std::as_bytes(std::span(content)));
}

TEST(ChecksumTest, IsThatOfXxh3) {
  // Of the xxHash project's xxhsum -H3, over the empty input and "abc".
  EXPECT_EQ(ChecksumText(Hash("")), "2d06800538d394c2");
  EXPECT_EQ(ChecksumText(Hash("abc")), "78af5f94892f3950");
}

TEST(ChecksumTest, IsOfTheContentWhateverThePortions) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{1} << 20, (size_t{1} << 20) + 1,
                            (size_t{3} << 20) - 1, size_t{3} << 20}) {
    const std::string content = RandomBytes(size, size);
    std::vector<uint64_t> pieces;
    for (size_t at = 0; at < size; at += kChecksumPieceBytes) {
      pieces.push_back(Hash(std::string_view(content).substr(at, kChecksumPieceBytes)));
    }
    EXPECT_EQ(ChecksumOf(content), ChecksumOfPieces(pieces)) << size;
    RandomStream random(7);
    Checksum checksum;
    for (size_t at = 0; at < size;) {
      const size_t count = std::min<size_t>(size - at, random.Below(700'000));
      checksum.Add(std::as_bytes(std::span(content).subspan(at, count)));
      (void)checksum.Value();  // asking on the way changes nothing
      at += count;
    }
    EXPECT_EQ(checksum.Value(), ChecksumOf(content)) << size;
    EXPECT_EQ(checksum.num_bytes(), size);
  }
}

TEST(ChecksumTest, ChangesWithAnyBitAndWithTheLength) {
  std::string content = RandomBytes((size_t{2} << 20) + 77, 3);
  const uint64_t good = ChecksumOf(content);
  RandomStream random(11);
  for (int i = 0; i < 100; ++i) {
    const size_t at = random.Below(content.size());
    const char bit = static_cast<char>(1 << random.Below(8));
    content[at] ^= bit;
    ASSERT_NE(ChecksumOf(content), good) << at;
    content[at] ^= bit;
  }
  EXPECT_NE(ChecksumOf(std::string_view(content).substr(1)), good);
  EXPECT_NE(ChecksumOf(content + '\0'), good);
  EXPECT_EQ(ChecksumOf(content), good);
}

class ManifestTest : public ::testing::Test {
 protected:
  ManifestTest() {
    std::string name = (fs::temp_directory_path() / "orrery-manifest-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~ManifestTest() override { fs::remove_all(folder_); }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  void Put(const std::string& name, std::string_view content) const {
    std::ofstream(Path(name), std::ios::binary) << content;
  }
  // Several stretches of pieces, a small file, an empty one and one in a folder below.
  void MakeFiles() {
    fs::create_directories(Path("below"));
    Put("a.json", "{}");
    Put("below/b", "b");
    Put("empty", "");
    Put("weights", RandomBytes((size_t{40} << 20) + 5, 1));
  }
  void MakeAll() {
    ASSERT_TRUE(BeginManifest(folder_).ok());
    MakeFiles();
    const absl::Status status = FinishManifest(folder_);
    ASSERT_TRUE(status.ok()) << status;
  }
  absl::Status Check() const {
    const auto manifest = ReadManifest(folder_);
    RETURN_IF_ERROR(manifest.status());
    if (!*manifest) return NotFound("no manifest");
    return CheckFiles(folder_, **manifest);
  }
  std::string folder_;
};

TEST_F(ManifestTest, NamesEveryFile) {
  MakeAll();
  EXPECT_TRUE(Check().ok()) << Check();
  const Manifest manifest = **ReadManifest(folder_);
  ASSERT_EQ(manifest.size(), 4u);
  EXPECT_EQ(manifest[0], (ManifestEntry{"a.json", 2, ChecksumOf("{}")}));
  EXPECT_EQ(manifest[1].name, "below/b");
  EXPECT_EQ(manifest[3].bytes, (uint64_t{40} << 20) + 5);
  EXPECT_EQ(manifest[3].checksum, ChecksumOf(*ReadFile(Path("weights"))));
  EXPECT_FALSE(fs::exists(Path(".checksums")));
}

TEST_F(ManifestTest, AFolderWithoutOneHasNone) {
  MakeFiles();
  const auto manifest = ReadManifest(folder_);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_FALSE(manifest->has_value());
  EXPECT_FALSE(KeepsManifest(Path("weights")));
  EXPECT_TRUE(NoteChecksum(Path("weights"), 1, 2).ok());
  EXPECT_FALSE(fs::exists(Path(".checksums")));
}

TEST_F(ManifestTest, WhatWasNotedIsNotReadAgain) {
  ASSERT_TRUE(BeginManifest(folder_).ok());
  MakeFiles();
  EXPECT_TRUE(KeepsManifest(Path("weights")));
  ASSERT_TRUE(NoteChecksum(Path("a.json"), 7, 1).ok());
  ASSERT_TRUE(NoteChecksum(Path("a.json"), 2, 0x1234).ok());  // written again: the last one counts
  ASSERT_TRUE(FinishManifest(folder_).ok());
  EXPECT_EQ((**ReadManifest(folder_))[0], (ManifestEntry{"a.json", 2, 0x1234}));
  EXPECT_THAT(StatusText(Check()), AllOf(HasSubstr(Path("a.json")), HasSubstr("0000000000001234")));
}

TEST_F(ManifestTest, AFileThatIsNotAsLongAsNotedIsAnError) {
  ASSERT_TRUE(BeginManifest(folder_).ok());
  MakeFiles();
  ASSERT_TRUE(NoteChecksum(Path("a.json"), 3, 1).ok());
  EXPECT_THAT(StatusText(FinishManifest(folder_)), HasSubstr("a.json: has 2 bytes"));
}

TEST_F(ManifestTest, TellsWhichFileIsDamagedCutOrMissing) {
  MakeAll();
  for (const std::string name : {"a.json", "below/b", "weights"}) {
    const std::string good = *ReadFile(Path(name));
    for (const size_t at : {size_t{0}, good.size() / 2, good.size() - 1}) {
      std::string bad = good;
      bad[at] ^= 0x10;
      Put(name, bad);
      EXPECT_THAT(StatusText(Check()),
                  AllOf(HasSubstr(Path(name) + ": is damaged: its checksum is " +
                                  ChecksumText(ChecksumOf(bad))),
                        HasSubstr("checksums.txt says " + ChecksumText(ChecksumOf(good)))));
    }
    Put(name, std::string_view(good).substr(0, good.size() - 1));
    EXPECT_THAT(StatusText(Check()),
                HasSubstr(fmt::format("{}: has {} bytes, checksums.txt says {}", Path(name),
                                      good.size() - 1, good.size())));
    fs::remove(Path(name));
    EXPECT_THAT(StatusText(Check()), HasSubstr(Path(name) + ": is missing"));
    fs::create_directory(Path(name));
    EXPECT_THAT(StatusText(Check()), HasSubstr(Path(name)));
    fs::remove(Path(name));
    ASSERT_EQ(::mkfifo(Path(name).c_str(), 0600), 0);
    EXPECT_THAT(StatusText(Check()), HasSubstr(Path(name)));
    fs::remove(Path(name));
    Put(name, good);
  }
  Put("notes.txt", "a file that nobody named");
  EXPECT_TRUE(Check().ok()) << Check();
}

TEST_F(ManifestTest, ItsOwnDamageIsFound) {
  MakeAll();
  const std::string good = *ReadFile(Path(kManifestFile));
  for (size_t at = 0; at < good.size(); ++at) {
    for (const char bits : {'\x01', '\x20', '\x80'}) {
      std::string bad = good;
      bad[at] ^= bits;
      Put(kManifestFile, bad);
      const auto manifest = ReadManifest(folder_);
      ASSERT_FALSE(manifest.ok()) << at;
      EXPECT_THAT(StatusText(manifest.status()), HasSubstr(Path(kManifestFile)));
    }
    Put(kManifestFile, std::string_view(good).substr(0, at));
    ASSERT_FALSE(ReadManifest(folder_).ok()) << at;
  }
  for (const std::string_view text : {"", "\n", "\n\n", " \n", "0 0 checksums.txt\n", "x"}) {
    Put(kManifestFile, text);
    EXPECT_FALSE(ReadManifest(folder_).ok()) << text;
  }
  fs::remove(Path(kManifestFile));
  fs::create_directory(Path(kManifestFile));
  EXPECT_FALSE(ReadManifest(folder_).ok());
}

TEST_F(ManifestTest, WithSoundLinesOfAnotherKindItIsRefused) {
  for (const std::string_view text : {"# another first line\n", "", "1 2 name\n"}) {
    Put(kManifestFile, fmt::format("{}{} {} {}\n", text, ChecksumText(ChecksumOf(text)),
                                   text.size(), kManifestFile));
    EXPECT_THAT(StatusText(ReadManifest(folder_).status()), HasSubstr("another version"));
  }
}

}  // namespace
}  // namespace orrery
