// Machines made up in folders, and a driver made up in a library.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "orchestrator/doctor/gpu.h"
#include "orchestrator/doctor/system.h"

namespace orrery::doctor {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

using Kind = Finding::Kind;

class DoctorTest : public ::testing::Test {
 protected:
  DoctorTest() {
    std::string name = (std::filesystem::temp_directory_path() / "orrery-doctor-XXXXXX").string();
    root_ = ::mkdtemp(name.data());
  }
  ~DoctorTest() override {
    ::unsetenv("FAKE_CUDA_STATE");
    std::filesystem::remove_all(root_);
  }
  std::string Put(const std::string& path, const std::string& content) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << content;
    return root_ + path;
  }
  // A driver in this state; "": all is well.
  GpuReport Probe(const std::string& state) const {
    ::setenv("FAKE_CUDA_STATE", state.c_str(), 1);
    return ProbeGpus(FAKE_CUDA, FAKE_CUDA, 12000);
  }
  Findings FindGpus(const std::string& state) const {
    return GpuFindings(Probe(state), 12000, root_ + "/pci");
  }
  std::string root_;
};

TEST_F(DoctorTest, GpusAreNamedWithTheirMemory) {
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  const GpuReport report = Probe("");
  EXPECT_EQ(report.state, GpuReport::State::kAvailable);
  ASSERT_EQ(report.gpus.size(), 2u);
  const Findings findings = GpuFindings(report, 12000, root_);
  ASSERT_EQ(findings.size(), 3u);
  EXPECT_EQ(findings[0].text, "driver 535.129.03, CUDA up to 12.2");
  EXPECT_EQ(findings[1].text, "NVIDIA First, 80.0 GiB (60.0 free), compute capability 9.0");
  EXPECT_EQ(findings[2].what, "gpu 1");
  EXPECT_EQ(CountProblems(findings), 0);
}

TEST_F(DoctorTest, WithoutNvmlTheDriverAloneIsAsked) {
  const GpuReport report = Probe("no_nvml");
  EXPECT_EQ(report.state, GpuReport::State::kAvailable);
  EXPECT_EQ(report.gpus.at(0).free_bytes, -1);
  EXPECT_EQ(ProbeGpus(FAKE_CUDA, "absent.so", 12000).gpus.size(), 2u);
}

TEST_F(DoctorTest, AnOldDriverIsAProblemWithBothVersions) {
  const Findings findings = FindGpus("old");
  EXPECT_EQ(findings[0].kind, Kind::kProblem);
  EXPECT_THAT(findings[0].text, HasSubstr("runs CUDA up to 11.4, the kernels need 12.0"));
}

TEST_F(DoctorTest, ADriverThatDoesNotStartIsAProblem) {
  for (const char* state : {"mismatch", "broken"}) {
    const Findings findings = FindGpus(state);
    ASSERT_EQ(findings.size(), 1u);
    EXPECT_EQ(findings[0].kind, Kind::kProblem) << state;
    EXPECT_FALSE(findings[0].fix.empty());
  }
  EXPECT_THAT(FindGpus("mismatch")[0].text, HasSubstr("803"));
  EXPECT_THAT(FindGpus("broken")[0].text, HasSubstr("GPU 1: CUDA error 999"));
}

TEST_F(DoctorTest, NoGpuIsNoProblem) {
  for (const char* state : {"none", "empty"}) {
    EXPECT_EQ(FindGpus(state)[0].kind, Kind::kNote) << state;
  }
  const Findings none = GpuFindings(ProbeGpus("absent.so", "absent.so", 12000), 12000, root_);
  ASSERT_EQ(none.size(), 1u);
  EXPECT_EQ(none[0].kind, Kind::kNote);
}

TEST_F(DoctorTest, AGpuWithoutADriverShowsOnTheBus) {
  Put("/pci/0000:00:02.0/vendor", "0x8086\n");
  Put("/pci/0000:00:02.0/class", "0x030000\n");
  Put("/pci/0000:01:00.1/vendor", "0x10de\n");  // its sound
  Put("/pci/0000:01:00.1/class", "0x040300\n");
  const GpuReport none = ProbeGpus("absent.so", "absent.so", 12000);
  EXPECT_EQ(GpuFindings(none, 12000, root_ + "/pci")[0].kind, Kind::kNote);
  Put("/pci/0000:01:00.0/vendor", "0x10de\n");
  Put("/pci/0000:01:00.0/class", "0x030200\n");
  const Findings found = GpuFindings(none, 12000, root_ + "/pci");
  EXPECT_EQ(found[0].kind, Kind::kProblem);
  EXPECT_THAT(found[0].fix, HasSubstr("nvidia-driver"));
}

TEST_F(DoctorTest, ALibraryThatIsNoDriverIsAnError) {
  const GpuReport report = ProbeGpus("libm.so.6", "libm.so.6", 12000);
  EXPECT_EQ(report.state, GpuReport::State::kFailed);
  EXPECT_THAT(report.error, HasSubstr("libm.so.6 lacks functions"));
}

TEST_F(DoctorTest, ToolkitsAreAskedForTheirVersion) {
  EXPECT_EQ(ToolkitFinding("/absent", root_ + "/cuda").kind, Kind::kNote);
  const std::string nvcc =
      Put("/cuda/bin/nvcc", "#!/bin/sh\necho 'Cuda compilation tools, release 12.2, V12.2.140'\n");
  ::chmod(nvcc.c_str(), 0755);
  const Finding found = ToolkitFinding("/absent", root_ + "/cuda");
  EXPECT_EQ(found.kind, Kind::kGood);
  EXPECT_EQ(found.text, "CUDA 12.2 at " + nvcc);
  Put("/cuda/bin/nvcc", "#!/bin/sh\necho 'Cuda compilation tools, release 11.8, V11.8.89'\n");
  EXPECT_THAT(ToolkitFinding(root_ + "/cuda/bin", "/absent").text, HasSubstr("too old"));
  Put("/cuda/bin/nvcc", "#!/bin/sh\nexit 1\n");
  EXPECT_THAT(ToolkitFinding("", root_ + "/cuda").text, HasSubstr("does not say its version"));
}

TEST_F(DoctorTest, CpuAndMemory) {
  Put("/proc/cpuinfo", "processor\t: 0\nmodel name\t: Made Up 9000\n");
  EXPECT_THAT(CpuFinding(root_, 4, "AVX2").text,
              AllOf(HasSubstr("Made Up 9000"), HasSubstr("4 threads, AVX2 kernels")));
  EXPECT_THAT(CpuFinding("/absent", 1, "NEON").text, HasSubstr("1 thread, NEON"));

  Put("/proc/meminfo", "MemTotal:  16777216 kB\nMemFree: 1 kB\nMemAvailable:  8388608 kB\n");
  EXPECT_EQ(MemoryFinding(root_, 0).text, "16.0 GiB, 8.0 available");
  EXPECT_EQ(MemoryFinding(root_, 0).kind, Kind::kGood);
  EXPECT_EQ(MemoryFinding(root_, int64_t{1} << 30).kind, Kind::kProblem);
  Put("/sys/fs/cgroup/memory.max", "max\n");
  EXPECT_EQ(MemoryFinding(root_, 0).kind, Kind::kGood);
  Put("/sys/fs/cgroup/memory.max", "1073741824\n");
  EXPECT_THAT(MemoryFinding(root_, 0).text, HasSubstr("the cgroup allows 1.0"));
  EXPECT_EQ(MemoryFinding(root_, 0).kind, Kind::kProblem);
  EXPECT_EQ(MemoryFinding("/absent", 0).kind, Kind::kNote);
}

TEST_F(DoctorTest, DiskAndLimits) {
  EXPECT_THAT(DiskFinding(root_ + "/not/yet/there").text, HasSubstr("free in " + root_));
  if (::geteuid() != 0) {
    EXPECT_EQ(DiskFinding("/proc").kind, Kind::kProblem);
  }
  EXPECT_EQ(FilesFinding(1024).kind, Kind::kGood);
  EXPECT_EQ(FilesFinding(64).kind, Kind::kProblem);
}

TEST_F(DoctorTest, MissingPackagesComeWithTheCommand) {
  Put("/setup/packages.txt", "# what is needed\ng++\nlibfmt-dev  # text\n\nlibhwy-dev\n");
  Put("/setup/packages-test.txt", "clang\n");
  const std::string status = Put("/status",
                                 "Package: g++\nStatus: install ok installed\n\n"
                                 "Package: libfmt-dev\nStatus: deinstall ok config-files\n\n"
                                 "Package: libhwy-dev\nStatus: install ok half-installed\n");
  EXPECT_THAT(MissingPackages(root_ + "/setup/packages.txt", status),
              ElementsAre("libfmt-dev", "libhwy-dev"));
  const Finding found = PackagesFinding(root_, status);
  EXPECT_EQ(found.kind, Kind::kProblem);
  EXPECT_THAT(found.fix,
              HasSubstr("apt-get install -y --no-install-recommends libfmt-dev libhwy-dev"));
  Put("/status",
      "Package: g++\nStatus: install ok installed\nPackage: libfmt-dev\nStatus: install ok "
      "installed\nPackage: libhwy-dev\nStatus: install ok installed\n");
  EXPECT_EQ(PackagesFinding(root_, status).kind, Kind::kGood);
  EXPECT_THAT(PackagesFinding(root_, status).text, HasSubstr("1 of the tests are not"));
  EXPECT_EQ(PackagesFinding(root_, "/absent").kind, Kind::kNote);
  EXPECT_EQ(PackagesFinding("", status).kind, Kind::kNote);
}

TEST_F(DoctorTest, LibrariesAreThoseOfThisProcess) {
  EXPECT_THAT(LoadedLibrary("libc.so.6"), HasSubstr("libc.so.6"));
  EXPECT_EQ(LoadedLibrary("libabsent.so"), "");
  EXPECT_EQ(TorchFinding("", "9.8.7").kind, Kind::kProblem);
  EXPECT_EQ(TorchFinding("/deps/torch/lib/libtorch_cpu.so", "9.8.7").text,
            "LibTorch 9.8.7 from /deps/torch/lib");
}

TEST_F(DoctorTest, HubSaysNoSecret) {
  const Finding found = HubFinding(root_ + "/hub", "https://hub.example", true, false);
  EXPECT_EQ(found.kind, Kind::kGood);
  EXPECT_THAT(found.text, AllOf(HasSubstr(root_ + "/hub"), HasSubstr("with a token")));
  EXPECT_THAT(HubFinding(root_, "x", false, true).text, HasSubstr("offline"));
  EXPECT_EQ(HubFinding("", "x", false, true).kind, Kind::kNote);
}

TEST_F(DoctorTest, AClockBeforeTheBuildIsWrong) {
  EXPECT_EQ(ClockFinding(1000000, 999999, true).kind, Kind::kGood);
  EXPECT_THAT(ClockFinding(1000000, 999999, true).text, HasSubstr("1970-01-12 13:46:40 UTC"));
  EXPECT_EQ(ClockFinding(1000000, 1000001, true).kind, Kind::kProblem);
  EXPECT_EQ(ClockFinding(1000000, 999999, false).kind, Kind::kNote);
}

TEST_F(DoctorTest, TheTextCountsProblems) {
  const std::string text = ToText({Good("cpu", "fine"), Problem("disk", "full", "make room")});
  EXPECT_THAT(text, HasSubstr("ok       cpu        fine\n"));
  EXPECT_THAT(text, HasSubstr("PROBLEM  disk       full\n"));
  EXPECT_THAT(text, HasSubstr("-> make room\n1 problem; what is after -> fixes it.\n"));
  EXPECT_THAT(ToText({Good("cpu", "fine"), Note("gpu", "none")}),
              AllOf(HasSubstr("Everything that orrery needs is here"), Not(HasSubstr("PROBLEM"))));
}

}  // namespace
}  // namespace orrery::doctor
