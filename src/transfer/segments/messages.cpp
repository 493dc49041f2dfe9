#include "transfer/segments/messages.h"

#include <utility>

#include "transfer/link/frame.h"

namespace cachalot::transfer {
namespace {

enum Kind : std::uint64_t {
  kOpen = 1,
  kOpened,
  kRead,
  kWrite,
  kWindow,
  kRefused,
  kCancel,
  kNotice
};

struct Encoder {
  BodyWriter body;

  void operator()(const OpenMessage& m) { body.word(kOpen).word(m.request).text(m.name); }
  void operator()(const OpenedMessage& m) {
    body.word(kOpened).word(m.request).word(m.segment).word(m.bytes).word(
        static_cast<std::uint64_t>(m.access));
  }
  void operator()(const ReadMessage& m) {
    body.word(kRead)
        .word(m.batch)
        .word(m.segment)
        .word(m.deadline_ns)
        .word(m.window)
        .stream(m.places);
  }
  void operator()(const WriteMessage& m) {
    body.word(kWrite).word(m.batch).word(m.segment).word(m.deadline_ns).stream(m.places);
  }
  void operator()(const WindowMessage& m) { body.word(kWindow).word(m.batch).word(m.window); }
  void operator()(const RefusedMessage& m) { body.word(kRefused).word(m.number).error(m.error); }
  void operator()(const CancelBatchMessage& m) { body.word(kCancel).word(m.batch); }
  void operator()(const NoticeMessage& m) { body.word(kNotice).text(m.text); }
};

RefusedMessage take_refused(BodyReader& body) {
  RefusedMessage m;
  m.number = body.word();
  m.error = body.error();
  return m;
}

}  // namespace

std::vector<std::byte> encode(const SegmentMessage& message) {
  Encoder encoder;
  std::visit(encoder, message);
  return encoder.body.take();
}

Result<SegmentMessage> decode_segment_message(std::span<const std::byte> bytes) {
  BodyReader body(bytes);
  SegmentMessage message;
  const std::uint64_t kind = body.word();
  switch (kind) {
    case kOpen: {
      OpenMessage m;
      m.request = body.word();
      m.name = body.text(kMostSegmentNameBytes);
      message = std::move(m);
      break;
    }
    case kOpened: {
      OpenedMessage m;
      m.request = body.word();
      m.segment = body.word();
      m.bytes = body.word();
      const std::uint64_t access = body.word();
      if (access == 0 || access > 3)
        return Error::make(Code::kBadInput, "a segment of access %llu; expected 1 to 3",
                           static_cast<unsigned long long>(access));
      m.access = static_cast<SegmentAccess>(access);
      message = m;
      break;
    }
    case kRead: {
      ReadMessage m;
      m.batch = body.word();
      m.segment = body.word();
      m.deadline_ns = body.word();
      m.window = body.word();
      m.places = body.stream();
      message = std::move(m);
      break;
    }
    case kWrite: {
      WriteMessage m;
      m.batch = body.word();
      m.segment = body.word();
      m.deadline_ns = body.word();
      m.places = body.stream();
      message = std::move(m);
      break;
    }
    case kWindow: {
      WindowMessage m;
      m.batch = body.word();
      m.window = body.word();
      message = m;
      break;
    }
    case kRefused:
      message = take_refused(body);
      break;
    case kCancel:
      message = CancelBatchMessage{body.word()};
      break;
    case kNotice:
      message = NoticeMessage{body.text(kMostNoticeBytes)};
      break;
    default:
      return Error::make(Code::kBadInput, "a message about segments of kind %llu is not known",
                         static_cast<unsigned long long>(kind));
  }
  CACHALOT_TRY(body.end());
  return message;
}

}  // namespace cachalot::transfer
