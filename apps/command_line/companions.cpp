#include "companions.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>

namespace cachalot::apps {
namespace {

constexpr const char* kMemory = "cachalot-memory";
constexpr const char* kSimulate = "cachalot-simulate";

constexpr std::array kCompanions = {
    Companion{"simulate", kSimulate,
              "simulates a cluster that serves a trace, for routing and admission policies", true},
    Companion{"long-prefill", kSimulate,
              "how long one long prompt takes on several instances, by three ways to split it",
              true},
    Companion{"calibrate", kSimulate, "timing models from measured TTFT and TPOT", true},
    Companion{"vtensor", kMemory,
              "device memory for the KV of a trace's requests: vTensors, static slots, paging",
              true},
    Companion{"alloc-trace", kMemory, "allocation traces: info, generate, convert", true},
    Companion{"alloc-replay", kMemory, "replays an allocation trace on allocators of device memory",
              true},
    Companion{"bench", "cachalot-bench", "benchmarks, each with its limit", false},
};

}  // namespace

Result<std::string> own_folder() {
  std::array<char, PATH_MAX> file;
  const ssize_t length = readlink("/proc/self/exe", file.data(), file.size());
  if (length < 0) return Error::from_errno(errno, "/proc/self/exe: reading");
  const std::string path(file.data(), static_cast<std::size_t>(length));
  return path.substr(0, path.rfind('/'));
}

std::span<const Companion> companions() {
  return kCompanions;
}

const Companion* find_companion(const std::string& command) {
  const auto found =
      std::find_if(kCompanions.begin(), kCompanions.end(),
                   [&](const Companion& companion) { return companion.command == command; });
  return found == kCompanions.end() ? nullptr : &*found;
}

std::vector<std::string> companion_places(const std::string& name, const std::string& own_folder,
                                          const std::string& path) {
  std::vector<std::string> places = {own_folder + "/" + name,
                                     own_folder + "/../libexec/cachalot/" + name};
  for (std::size_t at = 0; at < path.size();) {
    const std::size_t end = std::min(path.find(':', at), path.size());
    const std::string folder = path.substr(at, end - at);
    if (folder.starts_with('/')) places.push_back(folder + "/" + name);
    at = end + 1;
  }
  return places;
}

Error start_companion(const Companion& companion, std::span<char* const> words) {
  const Result<std::string> folder = own_folder();
  if (!folder) return folder.error();
  std::string program = companion.program;
  std::vector<char*> arguments = {program.data()};
  for (char* word : words.subspan(companion.has_other_commands ? 0 : 1)) arguments.push_back(word);
  arguments.push_back(nullptr);
  const char* const path = std::getenv("PATH");
  for (const std::string& place : companion_places(program, *folder, path == nullptr ? "" : path)) {
    execv(place.c_str(), arguments.data());
    if (errno != ENOENT && errno != ENOTDIR) {
      return Error::from_errno(errno, "%.150s: starting", place.c_str());
    }
  }
  return Error::make(Code::kUnsupported,
                     "`cachalot %s` is the program %s, expected in %.80s, its ../libexec/cachalot "
                     "or PATH (`make build` builds it)",
                     companion.command, companion.program, folder->c_str());
}

}  // namespace cachalot::apps
