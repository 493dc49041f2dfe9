// The numbers and texts of a pickle, as they stand behind their instructions.
#pragma once

#include <cachalot/result.h>

#include <cstddef>

#include "trace/allocation/pickle_bytes.h"
#include "trace/allocation/pickle_value.h"

namespace cachalot::trace {

PickleValue pickle_none();
PickleValue pickle_bool(bool value);
PickleValue pickle_integer(std::int64_t integer);

// @errors of all: kBadInput, cut or damaged; a line that is no number
Result<PickleValue> take_integer(PickleBytes& bytes, std::size_t width);  // without sign
Result<PickleValue> take_signed_integer(PickleBytes& bytes);              // four bytes
// "12", "12L"; of protocol 0 also bools: "00" and "01".
Result<PickleValue> take_decimal(PickleBytes& bytes);
// Two's complement of any length, which stands in front of it in so many bytes.
Result<PickleValue> take_long(PickleBytes& bytes, std::size_t length_width);
Result<PickleValue> take_decimal_float(PickleBytes& bytes);
Result<PickleValue> take_float(PickleBytes& bytes);
// Of a length that stands in front of it in so many bytes.
Result<PickleValue> take_text(PickleBytes& bytes, PickleKind kind, std::size_t length_width);
// As it stands, with its escapes.
Result<PickleValue> take_text_line(PickleBytes& bytes, bool has_quotes);
// A place of the memo.
Result<std::uint64_t> take_place_line(PickleBytes& bytes);

}  // namespace cachalot::trace
