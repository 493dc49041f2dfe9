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
#include <vector>

#include "os/file_descriptor.h"

namespace cachalot::apps {

// A result must not take the place of what it is made from.
// @errors kInvalidArgument: `file` (of this flag) is one of `inputs`, by this name or another
Status check_is_no_input(const char* flag, const std::string& file,
                         std::span<const std::string> inputs);

// Whether two names are of one file: of one that is there, or of one that would be made.
bool is_one_file(const std::string& a, const std::string& b);

// A pipe or a device, through links: what is written there replaces nothing.
bool is_special(const std::string& file);
// Whether stdout goes where this name leads, or is it ("-"): what is printed for people must not mix with the result.
bool is_stdout(const std::string& file);

// Results that would take each other's place.
// @param files  with their flags; "-" is stdout, no name is none
// @errors kInvalidArgument: two are one file, by this name or another, or both go to stdout
struct NamedFile {
  const char* flag;
  const std::string& file;
};
Status check_are_apart(std::initializer_list<NamedFile> files);

class Output;
struct OutputText {
  Output* output;
  std::string text;
};
// All or none: room for each is made before the first is written, and those that are new go again if one fails.
// Devices and pipes, which say only while they are written that they are full, come first.
// @errors as Output::open()
Status write_together(std::vector<OutputText> texts);

// JSON as Output writes it: one line.
std::string json_line(const nlohmann::json& value);

// A folder that is made with those above it, and goes again with this object if nothing is in it.
class ResultFolder {
 public:
  // @param  folder  no name: none
  // @errors kInvalidArgument: names the flag and the folder
  static Result<ResultFolder> make(const char* flag, const std::string& folder);
  ResultFolder(ResultFolder&&) = default;
  ResultFolder& operator=(ResultFolder&&) = delete;
  ~ResultFolder();

 private:
  ResultFolder() = default;
  std::vector<std::string> new_;  // the deepest first
};

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
  friend Status write_together(std::vector<OutputText> texts);
  explicit Output(std::string file) : file_(std::move(file)) {}
  bool is_file() const { return !file_.empty() && file_ != "-"; }
  bool keeps_nothing() const;  // a pipe or a device
  Status prepare(std::size_t bytes);
  void discard();
  Status write_all(std::string_view text);

  std::string file_;
  os::FileDescriptor fd_;  // of a file that was there before, or since prepare()
  bool is_new_ = false;
};

}  // namespace cachalot::apps
