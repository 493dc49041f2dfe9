// Objects in a bucket of an S3 service.
//
//   PREFIX/objects/<64 hexadecimal digits>       head and body
//   PREFIX/heads/<time>-<random>                 the heads of a batch, 112 bytes each
//
// A bucket's list has names and sizes only. So that list() does not read every object, a put also writes the heads
// of its batch into one small object; list() reads those, and the heads of objects that are in none of them. When
// there are many, list() writes them together. They are hints: an object is there if its name is.
// (docs/decisions/0012)
//
// @threads any
// @cost    a request an object and one a put, `connections` in parallel; a put copies once, a get once
#pragma once

#include <memory>
#include <string>

#include "storage/backend.h"
#include "storage/s3/client.h"

namespace cachalot::storage {

// Sends nothing yet: a service that is down is an error of the calls.
// @param prefix  without its last "/"; empty: "cachalot"
std::unique_ptr<Backend> make_s3_backend(const S3Options& options, const std::string& prefix);

}  // namespace cachalot::storage
