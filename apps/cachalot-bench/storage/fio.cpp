#include "fio.h"

#include <fcntl.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "os/child.h"

namespace cachalot::apps::bench {
namespace {

constexpr int kNotStarted = 127;

std::vector<std::string> arguments_of(const FioReads& reads) {
  return {"fio",
          "--name=reads",
          "--filename=" + reads.folder + "/fio.data",
          "--rw=randread",
          "--ioengine=io_uring",
          "--direct=1",
          "--randrepeat=0",
          "--bs=" + std::to_string(reads.block_bytes),
          "--size=" + std::to_string(reads.file_bytes),
          "--iodepth=" + std::to_string(reads.depth)};
}

// @param log  for what it prints
Status run_program(std::vector<std::string> arguments, const std::string& log) {
  CACHALOT_TRY_ASSIGN(os::Child child, os::Child::start([&] {
                        const int fd =
                            ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
                        ::dup2(fd, STDOUT_FILENO);
                        ::dup2(fd, STDERR_FILENO);
                        std::vector<char*> words;
                        for (std::string& word : arguments) words.push_back(word.data());
                        words.push_back(nullptr);
                        // Its buffers on huge pages, too: small ones cost a third of the rate.
                        ::setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1", 1);
                        ::execvp(words[0], words.data());
                        return kNotStarted;
                      }));
  CACHALOT_TRY_ASSIGN(const os::ChildStatus ended, child.wait());
  if (ended.ok()) return {};
  if (ended.exit_code == kNotStarted)
    return Error::make(Code::kUnsupported, "bench storage: the program fio is not installed");
  return Error::make(Code::kIo, "bench storage: fio ended with %s", ended.text().c_str());
}

}  // namespace

Status write_fio_file(const FioReads& reads) {
  std::vector<std::string> arguments = arguments_of(reads);
  arguments.emplace_back("--create_only=1");
  return run_program(std::move(arguments), reads.folder + "/fio.log");
}

Result<ReadRate> run_fio(const FioReads& reads, std::uint32_t ms) {
  const std::string result = reads.folder + "/fio.json";
  std::vector<std::string> arguments = arguments_of(reads);
  arguments.insert(arguments.end(), {"--time_based", "--runtime=" + std::to_string(ms) + "ms",
                                     "--output-format=json", "--output=" + result});
  CACHALOT_TRY(run_program(std::move(arguments), reads.folder + "/fio.log"));
  std::ifstream file(result);
  const nlohmann::json json = nlohmann::json::parse(file, nullptr, false);
  if (json.is_discarded() || !json.contains("jobs"))
    return Error::make(Code::kIo, "bench storage: fio has written no result");
  const nlohmann::json& job = json["jobs"][0];
  const double seconds = job["job_runtime"].get<double>() / 1e3;
  const double percent = job["usr_cpu"].get<double>() + job["sys_cpu"].get<double>();
  const double gib = job["read"]["io_bytes"].get<double>() / (1u << 30);
  return ReadRate{job["read"]["bw_bytes"].get<double>() / 1e9, percent / 100 * seconds / gib};
}

}  // namespace cachalot::apps::bench
