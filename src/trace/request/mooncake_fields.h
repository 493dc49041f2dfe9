// The fields of Mooncake's lines, which other dialects have too, some with another meaning.
#pragma once

#include <cachalot/result.h>

#include "trace/request/request.h"

namespace simdjson::dom {
class object;
}  // namespace simdjson::dom

namespace cachalot::trace {

enum MooncakeField : unsigned {
  kTimestamp,
  kInputLength,
  kOutputLength,
  kHashIds,
  kMooncakeFields
};

// Reads timestamp, input_length, output_length and hash_ids, each once at most; ignores others.
// @return the set of those that are there: bit 1 << field
// @errors kBadInput: names the field
Result<unsigned> read_mooncake_fields(const simdjson::dom::object& object, Request& request);
// @errors kBadInput: the first field that `seen` lacks, but for those of `optional`
Status check_mooncake_fields(unsigned seen, unsigned optional = 0);

}  // namespace cachalot::trace
