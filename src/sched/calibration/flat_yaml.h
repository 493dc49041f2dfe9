// The part of YAML that profiles' meta.yaml is written in, as one table of paths: "skew_fit.bucket_axes.n_bins".
//
// Nested maps by indentation, scalars, and lists in brackets on one line. Anything else is an error, not a guess.
#pragma once

#include <cachalot/result.h>

#include <map>
#include <string>
#include <vector>

namespace cachalot::sched {

class FlatYaml {
 public:
  // @errors kInvalidArgument: no such file; kBadInput: "file:line: …"; kIo
  static Result<FlatYaml> read(const std::string& path);

  bool has(const std::string& path) const { return values_.contains(path); }
  // The scalar's text without quotes. @errors kBadInput: names file and path
  Result<std::string> text(const std::string& path) const;
  Result<double> number(const std::string& path) const;
  Result<bool> boolean(const std::string& path) const;
  Result<std::vector<std::string>> list(const std::string& path) const;
  Result<std::vector<double>> numbers(const std::string& path) const;

 private:
  Error wrong(const std::string& path, const std::string& expected) const;

  std::string shown_path_;
  std::map<std::string, std::string> values_;
};

}  // namespace cachalot::sched
