// Where a result goes: tried before the work begins, so that the work is not lost to a misspelt
// folder, and written when it is done.
//
// A file that was not there is not there either when the work fails, or when it cannot be written
// whole. One that was there, or is by then, keeps its content until it is written, and when there is no
// space for what would take its place: of several programs that write one file the last one's result stands,
// whole.
#pragma once

#include <cachalot/result.h>

#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>

#include "os/file_descriptor.h"

namespace cachalot::apps {

// A result must not take the place of what it is made from.
// @errors kInvalidArgument: `file` (of this flag) is one of `inputs`, by this name or another
Status check_is_no_input(const char* flag, const std::string& file,
                         std::span<const std::string> inputs);

// Whether two names are of one file: of one that is there, or of one that would be made.
bool is_one_file(const std::string& a, const std::string& b);

// Results that would take each other's place.
// @param files  with their flags; "-" and no name are none
// @errors kInvalidArgument: two are one file, by this name or another
struct NamedFile {
  const char* flag;
  const std::string& file;
};
Status check_are_apart(std::initializer_list<NamedFile> files);

class Output {
 public:
  // @param  file  "-" is stdout; no name: what is written goes nowhere
  // @errors kInvalidArgument, kPermission, kNoSpace, kIo: names the file
  static Result<Output> open(const std::string& file);

  // Once. @errors as open()
  Status write(std::string_view text);
  // One line.
  Status write_json(const nlohmann::json& value);

 private:
  explicit Output(std::string file) : file_(std::move(file)) {}
  Status write_all(std::string_view text);

  std::string file_;
  os::FileDescriptor fd_;  // of a file that was there before
};

}  // namespace cachalot::apps
