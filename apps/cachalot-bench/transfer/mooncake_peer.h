// Mooncake's transfer engine or store over TCP on this machine, in a Python that has its wheel.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <memory>
#include <string>

#include "measure.h"
#include "os/child.h"
#include "os/file_descriptor.h"

namespace cachalot::apps::bench {

class MooncakePeer {
 public:
  // Starts two processes.
  // @param python  of a virtual environment with mooncake-transfer-engine-non-cuda
  // @param script  of mooncake_script.h
  // @param cores   of the engine: the receiver runs on its own one only, the sender on the other one; null: where the
  //                system says
  // @errors kUnsupported: no such program, or it has no such wheel; kIo: it does not start; kTimeout
  static Result<std::unique_ptr<MooncakePeer>> open(const std::string& python, const char* script,
                                                    const Cores* cores = nullptr);

  // Asks the script: the engine for the bytes per second of so many writes into the receiver's memory, 32 outstanding, of
  // the same bytes; the store for the microseconds that a get of so many objects of another process takes, in the middle.
  // @errors kIo: it failed; kTimeout
  Result<double> ask(std::uint64_t bytes, std::uint64_t count);

 private:
  MooncakePeer(os::Child child, os::FileDescriptor questions, os::FileDescriptor answers);
  Result<std::string> read_line();
  Status end();

  os::FileDescriptor questions_, answers_;
  os::Child child_;
  std::string text_;  // of no whole line yet
};

}  // namespace cachalot::apps::bench
