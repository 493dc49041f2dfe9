// A file as it is written, gzip where its name ends in .gz: the counterpart of ByteSource.
//
// A file appears under its name when it is finished, and one that was there keeps its content until
// then, and its mode; where the name is a link, what it stands for is meant. stdout ("-"), pipes and devices are written as it goes.
#pragma once

#include <cachalot/result.h>

#include <memory>
#include <string>
#include <string_view>

namespace cachalot::trace {

// @threads one at a time
class ByteSink {
 public:
  // @param  path  "-": stdout
  // @errors kInvalidArgument, kPermission, kNoSpace, kIo: names the file
  static Result<ByteSink> open(const std::string& path);
  ByteSink(ByteSink&&) noexcept;
  ByteSink& operator=(ByteSink&&) noexcept;
  ~ByteSink();  // what was not finished is removed

  // @cost   a copy; every MiB also a call of the system
  // @errors as open(); after one all calls fail alike
  Status write(std::string_view bytes);
  // Once, at the end.
  Status finish();

 private:
  class Impl;
  explicit ByteSink(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cachalot::trace
