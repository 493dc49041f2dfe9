// A page of a bucket's list: what ListObjectsV2 answers.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cachalot::storage {

struct S3Listing {
  std::vector<std::string> names;
  std::string next;  // the token of the next page; empty: this is the last one

  // @errors kIo: it is none
  static Result<S3Listing> parse(std::string_view xml);
};

}  // namespace cachalot::storage
