#include "orchestrator/commands/sandbox_images.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <memory>

#include "orchestrator/base/status.h"
#include "sandbox/image/image.h"

namespace orrery::commands {
namespace {

using sandbox::ImageStore;
using sandbox::ImageSummary;

// What the options write into; lives as long as the commands.
struct Arguments {
  std::string store = DefaultImageStore();
  std::string source;
  std::vector<std::string> references, history;
  std::string budget;
  bool password_from_input = false, verify = false, quiet = false;
  sandbox::PullOptions options;  // of import too
};

std::string HumanBytes(int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string Date(int64_t seconds) {
  const std::time_t time = seconds;
  std::tm date;
  char text[32];
  if (::gmtime_r(&time, &date) == nullptr) return "-";
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M", &date);
  return text;
}

std::string ShortId(const std::string& id) { return id.substr(0, sizeof("sha256:") - 1 + 12); }

// "10G", "512M", "1000000".
absl::StatusOr<int64_t> ParseBytes(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  const std::string unit = end;
  double factor = 0;
  if (unit.empty() || unit == "B") factor = 1;
  if (unit == "K" || unit == "KiB") factor = 1 << 10;
  if (unit == "M" || unit == "MiB") factor = 1 << 20;
  if (unit == "G" || unit == "GiB") factor = 1 << 30;
  if (unit == "T" || unit == "TiB") factor = 1024.0 * (1 << 30);
  if (end == text.c_str() || factor == 0 || value < 0 || value * factor > 9e18) {
    return InvalidInput("'{}' is no size such as 500M, 20G or 1.5T", text);
  }
  return static_cast<int64_t>(value * factor);
}

// "PATH=COMMIT" or "PATH".
sandbox::HistoryCut ParseHistory(const std::string& text) {
  const size_t equals = text.rfind('=');
  if (equals == std::string::npos) return {text, ""};
  return {text.substr(0, equals), text.substr(equals + 1)};
}

// One line that is written over, on a terminal.
std::function<void(const sandbox::ImageProgress&)> Progress(bool quiet) {
  if (quiet || ::isatty(2) == 0) return nullptr;
  auto last = std::make_shared<std::chrono::steady_clock::time_point>();
  return [last](const sandbox::ImageProgress& progress) {
    const auto now = std::chrono::steady_clock::now();
    if (now - *last < std::chrono::milliseconds(200)) return;
    *last = now;
    std::fprintf(stderr, "\r\033[K%s, this one %s", std::string(progress.what).c_str(),
                 HumanBytes(progress.bytes).c_str());
  };
}

absl::Status Report(const absl::StatusOr<ImageSummary>& image, bool has_progress) {
  if (has_progress) std::fputs("\r\033[K", stderr);
  if (!image.ok()) return image.status();
  std::printf("%s  %s  %s, %lld layers, %s\n", image->names.empty() ? "-" : image->names[0].c_str(),
              image->id.c_str(), image->architecture.c_str(),
              static_cast<long long>(image->num_layers), HumanBytes(image->bytes).c_str());
  for (const std::string& note : image->notes) std::printf("  %s\n", note.c_str());
  return absl::OkStatus();
}

absl::Status ImportOrPull(Arguments* arguments, bool pull) {
  for (const std::string& cut : arguments->history) {
    arguments->options.history.push_back(ParseHistory(cut));
  }
  if (arguments->password_from_input && !std::getline(std::cin, arguments->options.password)) {
    return InvalidInput("--password-stdin: there is no line on standard input");
  }
  arguments->options.progress = Progress(arguments->quiet);
  ASSIGN_OR_RETURN(const std::unique_ptr<ImageStore> store, ImageStore::Open(arguments->store));
  return Report(pull ? store->Pull(arguments->source, arguments->options)
                     : store->Import(arguments->source, arguments->options),
                arguments->options.progress != nullptr);
}

absl::Status PrintVerification(const ImageStore& store) {
  ASSIGN_OR_RETURN(const sandbox::VerifyReport report, store.Verify());
  for (const std::string& problem : report.problems) std::printf("%s\n", problem.c_str());
  if (!report.problems.empty()) {
    return absl::DataLossError(fmt::format(
        "{} problems: remove the images named (`orrery sandbox rm`) and bring them again",
        report.problems.size()));
  }
  std::printf("%lld images, %lld layers, %lld files: as they were unpacked\n",
              static_cast<long long>(report.images), static_cast<long long>(report.layers),
              static_cast<long long>(report.files));
  return absl::OkStatus();
}

absl::Status Images(const Arguments& arguments) {
  ASSIGN_OR_RETURN(const std::unique_ptr<ImageStore> store, ImageStore::Open(arguments.store));
  if (arguments.verify) return PrintVerification(*store);
  ASSIGN_OR_RETURN(const std::vector<ImageSummary> images, store->List());
  std::printf("%-40s  %-19s  %-7s  %6s  %10s  %-16s  %s\n", "NAME", "ID", "ARCH", "LAYERS", "SIZE",
              "CREATED", "USE");
  for (const ImageSummary& image : images) {
    const std::vector<std::string> names =
        image.names.empty() ? std::vector<std::string>{"-"} : image.names;
    for (const std::string& name : names) {
      std::printf("%-40s  %-19s  %-7s  %6lld  %10s  %-16s  %s\n", name.c_str(),
                  ShortId(image.id).c_str(), image.architecture.c_str(),
                  static_cast<long long>(image.num_layers), HumanBytes(image.bytes).c_str(),
                  Date(image.created).c_str(), image.in_use ? "running" : "");
    }
  }
  return absl::OkStatus();
}

absl::Status Remove(const Arguments& arguments) {
  ASSIGN_OR_RETURN(const std::unique_ptr<ImageStore> store, ImageStore::Open(arguments.store));
  for (const std::string& reference : arguments.references) {
    RETURN_IF_ERROR(store->Remove(reference));
    std::printf("removed %s\n", reference.c_str());
  }
  return absl::OkStatus();
}

absl::Status Gc(const Arguments& arguments) {
  std::optional<int64_t> budget;
  if (!arguments.budget.empty()) {
    ASSIGN_OR_RETURN(budget, ParseBytes(arguments.budget));
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<ImageStore> store, ImageStore::Open(arguments.store));
  ASSIGN_OR_RETURN(const sandbox::GcReport report, store->Gc(budget));
  for (const std::string& id : report.removed_images) std::printf("removed image %s\n", id.c_str());
  std::printf("freed %s (%lld layers), %s left\n", HumanBytes(report.freed_bytes).c_str(),
              static_cast<long long>(report.removed_layers), HumanBytes(report.bytes).c_str());
  if (report.fits) return absl::OkStatus();
  return Precondition("the store holds {}, more than the budget of {}: running sandboxes use it",
                      HumanBytes(report.bytes), HumanBytes(*budget));
}

void AddStore(CLI::App* command, Arguments* arguments) {
  command->add_option("--store", arguments->store,
                      "the image store's folder (default: $ORRERY_IMAGE_STORE, or "
                      "/var/lib/orrery/images)");
}

void AddUnpacking(CLI::App* command, Arguments* arguments) {
  sandbox::PullOptions& options = arguments->options;
  AddStore(command, arguments);
  command->add_option("--name", options.name, "NAME[:TAG] in the store");
  command->add_option("--arch", options.architecture,
                      "which one where there are several: amd64, arm64 (default: this machine's)");
  command
      ->add_option("--history", arguments->history,
                   "PATH[=COMMIT]: a git repository in the image is left nothing newer than the "
                   "commit (default: its HEAD); may be repeated")
      ->type_size(1)
      ->allow_extra_args(false);
  command->add_flag("--drop-devices", options.drop_devices,
                    "leave device nodes outside /dev out instead of refusing the image");
  command->add_flag("--squash-owners", options.squash_owners,
                    "owners beyond 65535 become 65534 instead of an error");
  command->add_option("--max-bytes", options.limits.max_bytes, "largest layer, unpacked");
  command->add_option("--max-entries", options.limits.max_entries, "most entries of a layer");
  command->add_option("--max-ratio", options.limits.max_ratio,
                      "unpacked to packed, beyond 1 GiB, before it is taken for a bomb");
  command->add_option("--threads", options.threads, "0: one a CPU, at most 8");
  command->add_flag("-q,--quiet", arguments->quiet, "no progress");
}

}  // namespace

std::string DefaultImageStore() {
  const char* folder = std::getenv("ORRERY_IMAGE_STORE");
  return folder != nullptr && *folder != '\0' ? folder : "/var/lib/orrery/images";
}

void AddSandboxImageCommands(CLI::App* sandbox, std::function<absl::StatusOr<Ending>()>* chosen) {
  const auto arguments = std::make_shared<Arguments>();
  const auto add = [&](const char* name, const char* text,
                       std::function<absl::Status(Arguments*)> command) {
    CLI::App* sub = sandbox->add_subcommand(name, text);
    sub->callback([chosen, arguments, command = std::move(command)] {
      *chosen = [arguments, command]() -> absl::StatusOr<Ending> {
        RETURN_IF_ERROR(command(arguments.get()));
        return Ending::kDone;
      };
    });
    return sub;
  };
  CLI::App* import = add("import", "an image from a file or folder into the store",
                         [](Arguments* all) { return ImportOrPull(all, /*pull=*/false); });
  import
      ->add_option("PATH", arguments->source,
                   "OCI layout, docker archive, tar of a root file system (plain, gzip, zstd) or "
                   "folder; PATH:TAG where it holds several images")
      ->required();
  AddUnpacking(import, arguments.get());
  import
      ->add_option("--env", arguments->options.config.env,
                   "NAME=VALUE of a root file system; may be repeated")
      ->type_size(1)
      ->allow_extra_args(false);
  import->add_option("--user", arguments->options.config.user, "user of a root file system");
  import->add_option("--workdir", arguments->options.config.working_dir,
                     "folder that commands start in, of a root file system");

  CLI::App* pull = add("pull", "an image from a registry into the store",
                       [](Arguments* all) { return ImportOrPull(all, /*pull=*/true); });
  pull->add_option("REFERENCE", arguments->source, "[HOST[:PORT]/]NAME[:TAG][@sha256:DIGEST]")
      ->required();
  AddUnpacking(pull, arguments.get());
  pull->add_option("--user", arguments->options.user,
                   "of the registry (default: $REGISTRY_AUTH_FILE, ~/.docker/config.json)");
  pull->add_flag("--password-stdin", arguments->password_from_input,
                 "the user's password is the first line of standard input");
  pull->add_flag("--plain-http", arguments->options.plain_http,
                 "without TLS (always so for a registry on this machine)");

  CLI::App* images =
      add("images", "what the store holds", [](Arguments* all) { return Images(*all); });
  AddStore(images, arguments.get());
  images->add_flag("--verify", arguments->verify, "compare every file with what was unpacked");

  CLI::App* rm = add("rm", "remove images", [](Arguments* all) { return Remove(*all); });
  rm->add_option("REFERENCE", arguments->references, "names or ids")->required();
  AddStore(rm, arguments.get());

  CLI::App* gc = add("gc", "delete what nothing needs, and more to fit a budget",
                     [](Arguments* all) { return Gc(*all); });
  gc->add_option("--budget", arguments->budget,
                 "what may stay, as 20G: least recently used images go first");
  AddStore(gc, arguments.get());
}

}  // namespace orrery::commands
