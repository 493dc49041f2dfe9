#include "trace/allocation/pickle_reader.h"

#include <utility>

#include "trace/allocation/pickle_literals.h"
#include "trace/allocation/pickle_opcodes.h"
#include "trace/allocation/pickle_stack.h"
#include "trace/file/byte_source.h"

namespace cachalot::trace {
namespace {

class PickleProgram {
 public:
  explicit PickleProgram(std::vector<char> file) : file_(std::move(file)), bytes_(file_) {}

  Result<PickleDocument> run() {
    std::size_t begin = 0;
    for (;;) {
      begin = bytes_.at();
      const Result<bool> more = step();
      if (!more) return placed(begin, more.error());
      if (!*more) break;
    }
    const Result<PickleValue> root = stack_.root();
    if (!root) return placed(begin, root.error());
    if (bytes_.left() != 0) {
      return placed(
          bytes_.at(),
          Error::make(Code::kBadInput, "%zu bytes after the end, expected none", bytes_.left()));
    }
    return PickleDocument(std::move(file_), stack_.take_containers(), *root);
  }

 private:
  using Opcode = PickleOpcode;
  using Kind = PickleKind;

  static Error placed(std::size_t at, const Error& error) {
    Error result = Error::make(error.code, "byte %zu: %s", at, error.message);
    result.detail = at;
    return result;
  }

  // False: the program is at its end.
  Result<bool> step() {
    CACHALOT_TRY_ASSIGN(const std::uint64_t opcode, bytes_.take_unsigned(1));
    if (static_cast<Opcode>(opcode) == Opcode::kStop) return false;
    CACHALOT_TRY(apply(static_cast<Opcode>(opcode)));
    return true;
  }

  Status apply(Opcode opcode) {
    switch (opcode) {
      case Opcode::kNone:
        return stack_.push(pickle_none());
      case Opcode::kNewTrue:
        return stack_.push(pickle_bool(true));
      case Opcode::kNewFalse:
        return stack_.push(pickle_bool(false));
      case Opcode::kInt:
      case Opcode::kLong:
        return push(take_decimal(bytes_));
      case Opcode::kBinInt:
        return push(take_signed_integer(bytes_));
      case Opcode::kBinInt1:
        return push(take_integer(bytes_, 1));
      case Opcode::kBinInt2:
        return push(take_integer(bytes_, 2));
      case Opcode::kLong1:
        return push(take_long(bytes_, 1));
      case Opcode::kLong4:
        return push(take_long(bytes_, 4));
      case Opcode::kFloat:
        return push(take_decimal_float(bytes_));
      case Opcode::kBinFloat:
        return push(take_float(bytes_));

      case Opcode::kString:
        return push(take_text_line(bytes_, true));
      case Opcode::kUnicode:
        return push(take_text_line(bytes_, false));
      case Opcode::kShortBinString:
      case Opcode::kShortBinUnicode:
        return push(take_text(bytes_, Kind::kText, 1));
      case Opcode::kBinString:
      case Opcode::kBinUnicode:
        return push(take_text(bytes_, Kind::kText, 4));
      case Opcode::kBinUnicode8:
        return push(take_text(bytes_, Kind::kText, 8));
      case Opcode::kShortBinBytes:
        return push(take_text(bytes_, Kind::kBytes, 1));
      case Opcode::kBinBytes:
        return push(take_text(bytes_, Kind::kBytes, 4));
      case Opcode::kBinBytes8:
      case Opcode::kByteArray8:
        return push(take_text(bytes_, Kind::kBytes, 8));

      case Opcode::kEmptyList:
        return stack_.push_container(Kind::kList, {});
      case Opcode::kEmptyTuple:
        return stack_.push_container(Kind::kTuple, {});
      case Opcode::kEmptyDict:
        return stack_.push_container(Kind::kDict, {});
      case Opcode::kEmptySet:
        return stack_.push_container(Kind::kSet, {});
      case Opcode::kList:
        return stack_.push_marked(Kind::kList);
      case Opcode::kTuple:
        return stack_.push_marked(Kind::kTuple);
      case Opcode::kDict:
        return stack_.push_marked(Kind::kDict);
      case Opcode::kFrozenSet:
        return stack_.push_marked(Kind::kSet);
      case Opcode::kTuple1:
        return stack_.push_tuple(1);
      case Opcode::kTuple2:
        return stack_.push_tuple(2);
      case Opcode::kTuple3:
        return stack_.push_tuple(3);
      case Opcode::kAppend:
        return stack_.extend(Kind::kList, 1);
      case Opcode::kAppends:
        return stack_.extend_marked(Kind::kList);
      case Opcode::kSetItem:
        return stack_.extend(Kind::kDict, 2);
      case Opcode::kSetItems:
        return stack_.extend_marked(Kind::kDict);
      case Opcode::kAddItems:
        return stack_.extend_marked(Kind::kSet);

      case Opcode::kMark:
        return stack_.mark();
      case Opcode::kPop:
        return stack_.pop();
      case Opcode::kPopMark:
        return stack_.pop_marked();
      case Opcode::kDup:
        return stack_.duplicate();
      case Opcode::kPut:
        return remember(take_place_line(bytes_));
      case Opcode::kBinPut:
        return remember(bytes_.take_unsigned(1));
      case Opcode::kLongBinPut:
        return remember(bytes_.take_unsigned(4));
      case Opcode::kMemoize:
        return stack_.remember_next();
      case Opcode::kGet:
        return recall(take_place_line(bytes_));
      case Opcode::kBinGet:
        return recall(bytes_.take_unsigned(1));
      case Opcode::kLongBinGet:
        return recall(bytes_.take_unsigned(4));

      case Opcode::kProto:
        return check_protocol();
      case Opcode::kFrame:
        return pass_over_frame();
      case Opcode::kStop:
        break;
    }
    return refuse(static_cast<std::uint8_t>(opcode));
  }

  static Error refuse(std::uint8_t opcode) {
    for (const RefusedOpcode& refused : kRefusedOpcodes) {
      if (refused.opcode != opcode) continue;
      return Error::make(Code::kBadInput,
                         "%s would run code, expected plain data: dicts, lists, numbers, text",
                         refused.name);
    }
    return Error::make(Code::kBadInput, "0x%02x, expected an instruction of a pickle", opcode);
  }

  Status push(const Result<PickleValue>& value) {
    return value ? stack_.push(*value) : Status(value.error());
  }
  Status remember(const Result<std::uint64_t>& place) {
    return place ? stack_.remember(*place) : Status(place.error());
  }
  Status recall(const Result<std::uint64_t>& place) {
    return place ? stack_.recall(*place) : Status(place.error());
  }

  Status check_protocol() {
    CACHALOT_TRY_ASSIGN(const std::uint64_t protocol, bytes_.take_unsigned(1));
    if (protocol <= 5) return {};
    return Error::make(Code::kBadInput, "protocol %" PRIu64 ", expected 0 to 5", protocol);
  }

  // A frame only says how much to read ahead.
  Status pass_over_frame() {
    CACHALOT_TRY_ASSIGN(const std::uint64_t length, bytes_.take_unsigned(8));
    return bytes_.expect(length);
  }

  std::vector<char> file_;
  PickleBytes bytes_;
  PickleStack stack_;
};

Error too_large() {
  return Error::make(Code::kBadInput, "more than %zu MiB, expected a smaller pickle",
                     kMaxPickleBytes >> 20);
}

Error in_file(const std::string& path, const Error& error) {
  return Error::make(error.code, "%s: %s", shown_path(path).c_str(), error.message);
}

Result<std::vector<char>> read_all(const std::string& path) {
  constexpr std::size_t kFirstBytes = std::size_t{1} << 20;
  CACHALOT_TRY_ASSIGN(const auto source, ByteSource::open(path));
  std::vector<char> bytes(kFirstBytes);
  std::size_t end = 0;
  for (;;) {
    CACHALOT_TRY_ASSIGN(const std::size_t more, source->read(std::span(bytes).subspan(end)));
    end += more;
    if (end > kMaxPickleBytes) return in_file(path, too_large());
    if (more == 0) break;
    if (end == bytes.size()) bytes.resize(bytes.size() * 2);
  }
  bytes.resize(end);
  return bytes;
}

}  // namespace

Result<PickleDocument> parse_pickle(std::vector<char> bytes) {
  if (bytes.size() > kMaxPickleBytes) return too_large();
  return PickleProgram(std::move(bytes)).run();
}

Result<PickleDocument> read_pickle(const std::string& path) {
  CACHALOT_TRY_ASSIGN(std::vector<char> bytes, read_all(path));
  Result<PickleDocument> document = parse_pickle(std::move(bytes));
  if (!document) return in_file(path, document.error());
  return document;
}

}  // namespace cachalot::trace
