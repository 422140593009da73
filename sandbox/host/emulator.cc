#include "sandbox/host/emulator.h"

namespace orrery::sandbox {
namespace {

#if defined(__aarch64__)
constexpr char kHost[] = "arm64";
#else
constexpr char kHost[] = "amd64";
#endif

// An ELF header's first 20 bytes and which bits of them count: class, order, type (program or
// shared object) and machine, of the ELF specification. The kernel reads the \x.
struct Emulator {
  const char *architecture, *program, *rule;
};
constexpr Emulator kEmulators[] = {
    {"arm64", "/usr/bin/qemu-aarch64-static",
     R"(:arm64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:)"
     R"(\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:)"},
    {"amd64", "/usr/bin/qemu-x86_64-static",
     R"(:amd64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x3e\x00:)"
     R"(\xff\xff\xff\xff\xff\xfe\xfe\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:)"},
};

}  // namespace

void ChooseEmulator(const std::string& architecture, CreateRequest* request) {
  if (architecture.empty() || architecture == kHost) return;
  // One that is not known is looked for by qemu's name of it, which fails with that name.
  request->emulator = "/usr/bin/qemu-" + architecture + "-static";
  for (const Emulator& emulator : kEmulators) {
    if (architecture != emulator.architecture) continue;
    request->emulator = emulator.program;
    request->binfmt_rule = emulator.rule;
  }
}

}  // namespace orrery::sandbox
