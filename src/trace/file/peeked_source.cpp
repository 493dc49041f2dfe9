#include "trace/file/peeked_source.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace cachalot::trace {

PeekedSource::PeekedSource(std::unique_ptr<ByteSource> source, std::size_t bytes)
    : source_(std::move(source)), beginning_(bytes, '\0') {
  const Result<std::size_t> read = source_->read(beginning_);
  if (!read) error_ = read.error();
  beginning_.resize(read ? *read : 0);
}

Result<std::size_t> PeekedSource::read(std::span<char> to) {
  if (error_) return *error_;
  const std::size_t known = std::min(to.size(), beginning_.size() - given_);
  std::memcpy(to.data(), beginning_.data() + given_, known);
  given_ += known;
  if (known == to.size()) return known;
  CACHALOT_TRY_ASSIGN(const std::size_t more, source_->read(to.subspan(known)));
  return known + more;
}

}  // namespace cachalot::trace
