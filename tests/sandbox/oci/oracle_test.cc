// What our launcher shows inside against what runc shows of the same sandbox (oci/bundle.h): ids,
// capabilities, limits, mounts, devices, masked paths and answers of refused calls. Each difference
// is listed here with its reason; any other fails.
#include <gmock/gmock.h>

#include <map>
#include <set>
#include <sstream>

#include "sandbox/bench/runc.h"
#include "tests/sandbox/host/testing.h"

namespace orrery::sandbox {
namespace {

using Lines = std::vector<std::string>;

// "== NAME" begins a section.
// clang-format off
constexpr const char* kLook = R"look(B=/bin/busybox
echo '== status'
grep -E '^(Uid|Gid|CapInh|CapPrm|CapEff|CapBnd|CapAmb|NoNewPrivs|Seccomp):' /proc/self/status
echo '== maps'; cat /proc/self/uid_map /proc/self/gid_map
echo '== limits'
grep -E '^Max (open files|file size|core file size|locked memory)' /proc/self/limits
echo '== oom'; cat /proc/self/oom_score_adj
echo '== names'; hostname; pwd; id
echo '== network'; grep -o '^ *[a-z0-9]*:' /proc/net/dev
echo '== mounts'; cat /proc/self/mounts
echo '== dev'
for f in /dev/*; do
  if test -L $f; then echo "$f: $($B readlink $f)"; else stat -c '%n %a %t:%T' $f; fi
done
echo '== masked'
for p in kcore keys latency_stats timer_list sched_debug interrupts acpi scsi asound; do
  if test -e /proc/$p; then echo "$p $(cat /proc/$p 2> /dev/null | wc -c) $(ls -A /proc/$p | wc -l)"; fi
done
echo "firmware $(ls -A /sys/firmware 2> /dev/null | wc -l)"
echo '== refused'
try() { "$@" > /dev/null 2>&1; echo "$* $?"; }
try $B mount -t tmpfs x /tmp
try $B mount -t proc x /tmp
try $B unshare -n true
try $B unshare -m true
try $B mknod /tmp/sda b 8 0
try $B mknod /tmp/pipe p
try $B hostname other
try $B chroot / true
try $B ping -c 1 127.0.0.1
try $B dmesg
try $B swapoff -a
try $B insmod x
try $B ip link set lo down
try sh -c 'echo 1 > /proc/sys/kernel/core_pattern'
try sh -c 'echo b > /proc/sysrq-trigger'
try sh -c 'echo 1 > /proc/sys/vm/drop_caches'
try sh -c 'echo x > /sys/kernel/uevent_helper'
)look";
// clang-format on

std::map<std::string, Lines> Sections(const std::string& text) {
  std::map<std::string, Lines> sections;
  std::istringstream in(text);
  std::string name;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("== ")) {
      name = line.substr(3);
      sections[name];
    } else {
      sections[name].push_back(line);
    }
  }
  return sections;
}

struct MountSeen {
  std::string type;
  std::set<std::string> flags;
};

// By place, without what is an address of the machine: sources, sizes, ids on the host.
std::map<std::string, MountSeen> Mounts(const Lines& lines) {
  std::map<std::string, MountSeen> mounts;
  for (const std::string& line : lines) {
    std::istringstream words(line);
    std::string source, place, options;
    MountSeen mount;
    words >> source >> place >> mount.type >> options;
    std::istringstream parts(options);
    for (std::string option; std::getline(parts, option, ',');) {
      if (option == "ro" || option == "nosuid" || option == "nodev" || option == "noexec") {
        mount.flags.insert(option);
      }
    }
    mounts[place] = mount;
  }
  return mounts;
}

std::set<std::string> Set(const Lines& lines) { return {lines.begin(), lines.end()}; }

// What only one side has.
std::set<std::string> Difference(const std::set<std::string>& ours,
                                 const std::set<std::string>& theirs) {
  std::set<std::string> all;
  for (const std::string& line : ours) {
    if (!theirs.contains(line)) all.insert("ours: " + line);
  }
  for (const std::string& line : theirs) {
    if (!ours.contains(line)) all.insert("runc: " + line);
  }
  return all;
}

class OracleTest : public HostTest {
 protected:
  void SetUp() override {
    HostTest::SetUp();
    if (IsSkipped()) return;
    const auto sandbox = Make();
    const ExecResult result = sandbox->Exec(Shell(kLook));
    const auto runc = RunByRunc(options_, work_.path() + "/runc", {"sh", "-c", kLook});
    if (absl::IsNotFound(runc.status())) GTEST_SKIP() << runc.status();
    ASSERT_TRUE(runc.ok()) << runc.status();
    ours_ = Sections(result.output.Text());
    theirs_ = Sections(*runc);
  }
  std::set<std::string> Differences(const std::string& section) {
    EXPECT_TRUE(ours_.contains(section) && theirs_.contains(section)) << section;
    return Difference(Set(ours_[section]), Set(theirs_[section]));
  }
  std::map<std::string, Lines> ours_, theirs_;
};

TEST_F(OracleTest, ShowsTheSameInside) {
  for (const char* section : {"status", "limits", "oom", "names", "network", "masked", "refused"}) {
    EXPECT_THAT(Differences(section), testing::IsEmpty()) << section;
  }
  EXPECT_THAT(Differences("dev"), testing::IsEmpty());
  // Each has a range of its own.
  const auto size_of = [](const std::string& line) {
    std::istringstream words(line);
    std::string inside, outside, size;
    words >> inside >> outside >> size;
    return inside + " " + size;
  };
  ASSERT_EQ(ours_["maps"].size(), theirs_["maps"].size());
  for (size_t i = 0; i < ours_["maps"].size(); ++i) {
    EXPECT_EQ(size_of(ours_["maps"][i]), size_of(theirs_["maps"][i]));
  }
}

// Differences, and why: in a user namespace runc binds the host's device nodes one by one, where
// our /dev is one read-only tmpfs with nodes of its own; files are masked by runc with the host's
// /dev/null and by us with that of the sandbox; and our root, /dev and masks carry flags more.
TEST_F(OracleTest, MountsAreTheSameOrStricter) {
  const std::set<std::string> bound = {"/dev/null",   "/dev/zero",    "/dev/full",
                                       "/dev/random", "/dev/urandom", "/dev/tty"};
  const auto ours = Mounts(ours_["mounts"]), theirs = Mounts(theirs_["mounts"]);
  for (const auto& [place, mount] : ours) {
    EXPECT_TRUE(theirs.contains(place)) << place << " is mounted by us alone";
  }
  for (const auto& [place, mount] : theirs) {
    if (bound.contains(place)) continue;
    ASSERT_TRUE(ours.contains(place)) << place << " is mounted by runc alone";
    const MountSeen& mine = ours.at(place);
    EXPECT_TRUE(mount.type == mine.type || mount.type == "devtmpfs") << place;
    for (const std::string& flag : mount.flags) {
      EXPECT_TRUE(mine.flags.contains(flag)) << place << " lacks " << flag;
    }
  }
  for (const char* strict : {"/", "/dev"}) EXPECT_TRUE(ours.at(strict).flags.contains("nosuid"));
  EXPECT_TRUE(ours.at("/dev").flags.contains("ro"));
}

}  // namespace
}  // namespace orrery::sandbox
