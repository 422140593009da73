#include "sandbox/oci/bundle.h"

#include <rapidjson/document.h>
#include <rapidjson/prettywriter.h>
#include <rapidjson/stringbuffer.h>

#include <cmath>

#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"
#include "sandbox/protocol/messages.h"
#include "sandbox/seccomp/filter.h"

namespace orrery::sandbox {
namespace {

using Json = rapidjson::Value;

constexpr const char* kCapabilities[] = {
    "CAP_CHOWN",  "CAP_DAC_OVERRIDE", "CAP_FOWNER",  "CAP_FSETID",           "CAP_KILL",
    "CAP_SETGID", "CAP_SETUID",       "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT",
    "CAP_SETFCAP"};
constexpr const char* kMasked[] = {
    "/proc/kcore",      "/proc/keys",        "/proc/latency_stats",
    "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug",
    "/proc/interrupts", "/proc/acpi",        "/proc/scsi",
    "/proc/asound",     "/sys/firmware",     "/sys/devices/virtual/powercap"};
constexpr const char* kReadOnly[] = {"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys",
                                     "/proc/sysrq-trigger"};

// Values of one document, with little ceremony.
class Builder {
 public:
  Json Text(const std::string& text) { return Json(text.c_str(), allocator()); }
  template <typename List>
  Json Texts(const List& list) {
    Json array(rapidjson::kArrayType);
    for (const auto& text : list) array.PushBack(Text(text), allocator());
    return array;
  }
  Json Object() { return Json(rapidjson::kObjectType); }
  Json Array() { return Json(rapidjson::kArrayType); }
  template <typename Value>
  Builder& Add(Json& object, const char* key, Value&& value) {
    object.AddMember(rapidjson::StringRef(key), std::forward<Value>(value), allocator());
    return *this;
  }
  void Push(Json& array, Json value) { array.PushBack(std::move(value), allocator()); }
  rapidjson::Document::AllocatorType& allocator() { return document_.GetAllocator(); }

 private:
  rapidjson::Document document_;
};

Json Capabilities(Builder& b) {
  Json sets = b.Object();
  for (const char* set : {"bounding", "effective", "permitted"}) {
    b.Add(sets, set, b.Texts(kCapabilities));
  }
  return sets;
}

Json ResourceLimit(Builder& b, const char* type, int64_t value) {
  Json limit = b.Object();
  b.Add(limit, "type", b.Text(type)).Add(limit, "hard", value).Add(limit, "soft", value);
  return limit;
}

Json Process(Builder& b, const BundleOptions& options) {
  const Limits& limits = options.sandbox.limits;
  const ImageConfig& config = options.sandbox.image.config;
  Json user = b.Object();
  b.Add(user, "uid", 0).Add(user, "gid", 0);
  Json rlimits = b.Array();
  b.Push(rlimits, ResourceLimit(b, "RLIMIT_CORE", 0));
  b.Push(rlimits, ResourceLimit(b, "RLIMIT_NOFILE", limits.open_files));
  b.Push(rlimits, ResourceLimit(b, "RLIMIT_FSIZE", limits.file_bytes));
  b.Push(rlimits, ResourceLimit(b, "RLIMIT_MEMLOCK", 8 << 20));
  std::vector<std::string> env = config.env;
  env.push_back("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
  env.push_back("HOME=/root");
  Json process = b.Object();
  b.Add(process, "terminal", options.terminal)
      .Add(process, "user", user)
      .Add(process, "args", b.Texts(options.argv))
      .Add(process, "env", b.Texts(env))
      .Add(process, "cwd", b.Text(config.working_dir.empty() ? "/" : config.working_dir))
      .Add(process, "capabilities", Capabilities(b))
      .Add(process, "rlimits", rlimits)
      .Add(process, "noNewPrivileges", true)
      .Add(process, "oomScoreAdj", 700);
  return process;
}

Json Mount(Builder& b, const char* place, const char* type,
           const std::vector<std::string>& options) {
  Json mount = b.Object();
  b.Add(mount, "destination", b.Text(place))
      .Add(mount, "type", b.Text(type))
      .Add(mount, "source", b.Text(type))
      .Add(mount, "options", b.Texts(options));
  return mount;
}

Json Mounts(Builder& b, const Limits& limits) {
  Json mounts = b.Array();
  const std::vector<std::string> plain = {"nosuid", "noexec", "nodev"};
  b.Push(mounts, Mount(b, "/proc", "proc", plain));
  b.Push(mounts, Mount(b, "/sys", "sysfs", {"nosuid", "noexec", "nodev", "ro"}));
  b.Push(mounts, Mount(b, "/dev", "tmpfs", {"nosuid", "noexec", "mode=755", "size=65536k"}));
  b.Push(mounts, Mount(b, "/dev/pts", "devpts",
                       {"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}));
  b.Push(mounts, Mount(b, "/dev/shm", "tmpfs",
                       {"nosuid", "noexec", "nodev", "mode=1777",
                        fmt::format("size={}k", limits.shm_bytes >> 10)}));
  b.Push(mounts, Mount(b, "/dev/mqueue", "mqueue", plain));
  return mounts;
}

Json IdMappings(Builder& b, uint32_t id_base) {
  Json mapping = b.Object();
  b.Add(mapping, "containerID", 0).Add(mapping, "hostID", id_base).Add(mapping, "size", kIdCount);
  Json mappings = b.Array();
  b.Push(mappings, std::move(mapping));
  return mappings;
}

Json Namespaces(Builder& b) {
  Json namespaces = b.Array();
  for (const char* type : {"user", "pid", "mount", "network", "ipc", "uts", "cgroup"}) {
    Json entry = b.Object();
    b.Add(entry, "type", b.Text(type));
    b.Push(namespaces, std::move(entry));
  }
  return namespaces;
}

Json Resources(Builder& b, const Limits& limits) {
  constexpr int64_t kPeriodUs = 100'000;
  Json memory = b.Object(), pids = b.Object(), cpu = b.Object(), resources = b.Object();
  b.Add(memory, "limit", limits.memory_bytes).Add(memory, "swap", limits.memory_bytes);
  b.Add(pids, "limit", limits.processes);
  b.Add(cpu, "quota", static_cast<int64_t>(std::ceil(limits.cpus * kPeriodUs)))
      .Add(cpu, "period", kPeriodUs);
  b.Add(resources, "memory", memory).Add(resources, "pids", pids).Add(resources, "cpu", cpu);
  return resources;
}

Json Condition(Builder& b, int index, uint64_t value, const char* op, uint64_t second = 0) {
  Json condition = b.Object();
  b.Add(condition, "index", index).Add(condition, "value", value);
  if (second != 0 || std::string_view(op) == "SCMP_CMP_MASKED_EQ") {
    b.Add(condition, "valueTwo", second);
  }
  b.Add(condition, "op", b.Text(op));
  return condition;
}

Json Rule(Builder& b, const std::vector<std::string>& names, const char* action,
          std::vector<Json> conditions = {}) {
  Json rule = b.Object();
  b.Add(rule, "names", b.Texts(names)).Add(rule, "action", b.Text(action));
  if (conditions.empty()) return rule;
  Json arguments = b.Array();
  for (Json& condition : conditions) b.Push(arguments, std::move(condition));
  b.Add(rule, "args", arguments);
  return rule;
}

template <typename... Conditions>
std::vector<Json> List(Conditions... conditions) {
  std::vector<Json> list;
  (list.push_back(std::move(conditions)), ...);
  return list;
}

// As seccomp/filter.cc makes it.
Json Seccomp(Builder& b) {
  constexpr const char* kAllow = "SCMP_ACT_ALLOW";
  constexpr const char* kEqual = "SCMP_CMP_EQ";
  Json rules = b.Array();
  b.Push(rules, Rule(b, AllowedCalls(), kAllow));
  for (const uint64_t family : {1, 2, 10}) {  // UNIX, INET, INET6
    b.Push(rules, Rule(b, {"socket"}, kAllow, List(Condition(b, 0, family, kEqual))));
  }
  b.Push(rules, Rule(b, {"socket"}, kAllow,
                     List(Condition(b, 0, 16, kEqual), Condition(b, 2, 0, kEqual))));
  b.Push(rules, Rule(b, {"socketpair"}, kAllow, List(Condition(b, 0, 1, kEqual))));
  b.Push(rules,
         Rule(b, {"clone"}, kAllow, List(Condition(b, 0, 0x7e020000, "SCMP_CMP_MASKED_EQ", 0))));
  for (const uint64_t persona : {0x0, 0x8, 0x20000, 0x20008, 0x7fffffff}) {
    const uint64_t value = persona == 0x7fffffff ? 0xffffffff : persona;
    b.Push(rules, Rule(b, {"personality"}, kAllow, List(Condition(b, 0, value, kEqual))));
  }
  // TIOCSTI and TIOCLINUX are refused.
  b.Push(rules, Rule(b, {"ioctl"}, kAllow, List(Condition(b, 1, 0x5412, "SCMP_CMP_LT"))));
  for (uint64_t request = 0x5413; request < 0x541c; ++request) {
    b.Push(rules, Rule(b, {"ioctl"}, kAllow, List(Condition(b, 1, request, kEqual))));
  }
  b.Push(rules, Rule(b, {"ioctl"}, kAllow, List(Condition(b, 1, 0x541c, "SCMP_CMP_GT"))));
  Json clone3 = Rule(b, {"clone3"}, "SCMP_ACT_ERRNO");
  b.Add(clone3, "errnoRet", 38);
  b.Push(rules, std::move(clone3));
  Json seccomp = b.Object();
  b.Add(seccomp, "defaultAction", b.Text("SCMP_ACT_ERRNO"))
      .Add(seccomp, "defaultErrnoRet", 1)
      .Add(seccomp, "architectures", b.Texts(std::vector<std::string> {
#if defined(__aarch64__)
        "SCMP_ARCH_AARCH64"
#else
                                         "SCMP_ARCH_X86_64"
#endif
      }))
      .Add(seccomp, "syscalls", rules);
  return seccomp;
}

Json Linux(Builder& b, const BundleOptions& options) {
  Json section = b.Object();
  b.Add(section, "uidMappings", IdMappings(b, options.id_base))
      .Add(section, "gidMappings", IdMappings(b, options.id_base))
      .Add(section, "namespaces", Namespaces(b))
      .Add(section, "resources", Resources(b, options.sandbox.limits))
      .Add(section, "cgroupsPath", b.Text(options.cgroup))
      .Add(section, "maskedPaths", b.Texts(kMasked))
      .Add(section, "readonlyPaths", b.Texts(kReadOnly))
      .Add(section, "seccomp", Seccomp(b));
  return section;
}

}  // namespace

std::string MakeBundleConfig(const BundleOptions& options) {
  Builder b;
  Json root = b.Object(), config = b.Object();
  b.Add(root, "path", b.Text(options.root)).Add(root, "readonly", false);
  b.Add(config, "ociVersion", b.Text("1.0.2"))
      .Add(config, "process", Process(b, options))
      .Add(config, "root", root)
      .Add(config, "hostname", b.Text(options.sandbox.hostname))
      .Add(config, "mounts", Mounts(b, options.sandbox.limits))
      .Add(config, "linux", Linux(b, options));
  rapidjson::StringBuffer buffer;
  rapidjson::PrettyWriter<rapidjson::StringBuffer> writer(buffer);
  config.Accept(writer);
  return std::string(buffer.GetString(), buffer.GetSize()) + "\n";
}

absl::Status WriteBundle(const std::string& folder, const BundleOptions& options) {
  RETURN_IF_ERROR(MakeFolders(folder));
  return WriteFileAtomically(folder + "/config.json", MakeBundleConfig(options));
}

}  // namespace orrery::sandbox
