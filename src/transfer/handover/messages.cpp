#include "transfer/handover/messages.h"

#include <cstring>
#include <type_traits>
#include <utility>

#include "transfer/link/frame.h"

namespace cachalot::transfer {
namespace {

enum Kind : std::uint64_t { kAsk = 1, kPlan, kGo, kRefusal, kNote, kCancel, kNothing, kDecline };

constexpr std::uint64_t kMostTokens = std::uint64_t{1} << 40;
constexpr std::size_t kShapeWords = sizeof(StreamShape) / 8;
static_assert(std::is_trivially_copyable_v<StreamShape>);

void put(BodyWriter& body, const Proof& proof) {
  for (const std::uint64_t word : proof) body.word(word);
}

Proof take_proof(BodyReader& body) {
  Proof proof;
  for (std::uint64_t& word : proof) word = body.word();
  return proof;
}

void put(BodyWriter& body, const InstanceShape& shape) {
  body.word(shape.tp_size).word(shape.pp_size).word(shape.stage_layers.size());
  for (const std::uint32_t layers : shape.stage_layers) body.word(layers);
  body.word(shape.machines.size());
  for (const std::uint32_t machine : shape.machines) body.word(machine);
}

std::uint32_t small(BodyReader& body) {
  const std::uint64_t value = body.word();
  return value > 0xffffffffu ? 0xffffffffu : static_cast<std::uint32_t>(value);
}

InstanceShape take_shape(BodyReader& body) {
  InstanceShape shape;
  shape.tp_size = small(body);
  shape.pp_size = small(body);
  for (std::uint64_t left = body.word(); left > 0 && left <= kMostRanks && body.status().ok();
       --left) {
    shape.stage_layers.push_back(small(body));
  }
  for (std::uint64_t left = body.word(); left > 0 && left <= kMostRanks && body.status().ok();
       --left) {
    shape.machines.push_back(small(body));
  }
  return shape;
}

struct Encoder {
  BodyWriter body;

  void operator()(const AskMessage& m) {
    body.word(kAsk).word(m.ask).word(m.offer.high).word(m.offer.low);
    body.word(m.nonce.high).word(m.nonce.low);
    put(body, m.shape);
    body.word(m.rank)
        .word(m.first_token)
        .word(m.tokens)
        .word(m.waits_for_offer ? 1 : 0)
        .word(m.is_copy ? 1 : 0)
        .word(m.hash ? 1 : 0)
        .word(m.hash ? m.hash->low : 0)
        .word(m.hash ? m.hash->high : 0)
        .word(m.fetches.size());
    for (const StreamShape& fetch : m.fetches) {
      std::uint64_t words[kShapeWords];
      std::memcpy(words, &fetch, sizeof words);
      for (const std::uint64_t word : words) body.word(word);
    }
    put(body, m.proof);
  }
  void operator()(const PlanMessage& m) {
    body.word(kPlan).word(m.ask).word(m.orders.size());
    for (const StreamOrder& order : m.orders)
      body.word(static_cast<std::uint64_t>(order.loops)).word(order.page_tokens);
    put(body, m.proof);
  }
  void operator()(const GoMessage& m) { body.word(kGo).word(m.ask).words(m.windows); }
  void operator()(const RefusalMessage& m) { body.word(kRefusal).word(m.ask).error(m.error); }
  void operator()(const NoteMessage& m) { body.word(kNote).word(m.ask).bytes(m.note); }
  void operator()(const CancelMessage& m) { body.word(kCancel).word(m.ask); }
  void operator()(const NothingMessage& m) {
    body.word(kNothing).word(m.offer.high).word(m.offer.low);
    put(body, m.shape);
    put(body, m.proof);
  }
  void operator()(const DeclineMessage& m) {
    body.word(kDecline).word(m.offer.high).word(m.offer.low);
    put(body, m.proof);
  }
};

AskMessage take_ask(BodyReader& body) {
  AskMessage m;
  m.ask = body.word();
  m.offer.high = body.word();
  m.offer.low = body.word();
  m.nonce.high = body.word();
  m.nonce.low = body.word();
  m.shape = take_shape(body);
  m.rank = small(body);
  m.first_token = body.word();
  m.tokens = body.word();
  m.waits_for_offer = body.word() != 0;
  m.is_copy = body.word() != 0;
  const bool has_hash = body.word() != 0;
  BlockHash hash;
  hash.low = body.word();
  hash.high = body.word();
  if (has_hash) m.hash = hash;
  for (std::uint64_t left = body.word(); left > 0 && left <= kMostFetches && body.status().ok();
       --left) {
    std::uint64_t words[kShapeWords];
    for (std::uint64_t& word : words) word = body.word();
    std::memcpy(&m.fetches.emplace_back(), words, sizeof words);
  }
  m.proof = take_proof(body);
  return m;
}

PlanMessage take_plan(BodyReader& body) {
  PlanMessage m;
  m.ask = body.word();
  for (std::uint64_t left = body.word(); left > 0 && left <= kMostFetches && body.status().ok();
       --left) {
    StreamOrder& order = m.orders.emplace_back();
    order.loops = static_cast<Loops>(small(body));
    order.page_tokens = small(body);
  }
  m.proof = take_proof(body);
  return m;
}

RefusalMessage take_refusal(BodyReader& body) {
  RefusalMessage m;
  m.ask = body.word();
  m.error = body.error();
  return m;
}

}  // namespace

std::vector<std::byte> encode(const Message& message) {
  Encoder encoder;
  std::visit(encoder, message);
  return encoder.body.take();
}

Result<Message> decode(std::span<const std::byte> bytes) {
  BodyReader body(bytes);
  Message message;
  const std::uint64_t kind = body.word();
  switch (kind) {
    case kAsk:
      message = take_ask(body);
      break;
    case kPlan:
      message = take_plan(body);
      break;
    case kGo: {
      GoMessage m;
      m.ask = body.word();
      m.windows = body.words(kMostFetches);
      message = std::move(m);
      break;
    }
    case kRefusal:
      message = take_refusal(body);
      break;
    case kNote: {
      NoteMessage m;
      m.ask = body.word();
      m.note = body.bytes(kMostNoteBytes);
      message = std::move(m);
      break;
    }
    case kCancel:
      message = CancelMessage{body.word()};
      break;
    case kNothing: {
      NothingMessage m;
      m.offer.high = body.word();
      m.offer.low = body.word();
      m.shape = take_shape(body);
      m.proof = take_proof(body);
      message = std::move(m);
      break;
    }
    case kDecline: {
      DeclineMessage m;
      m.offer.high = body.word();
      m.offer.low = body.word();
      m.proof = take_proof(body);
      message = m;
      break;
    }
    default:
      return Error::make(Code::kBadInput, "a hand-over message of kind %llu is not known",
                         static_cast<unsigned long long>(kind));
  }
  CACHALOT_TRY(body.end());
  if (const auto* ask = std::get_if<AskMessage>(&message)) {
    CACHALOT_TRY(check(ask->shape));
    if (ask->tokens > kMostTokens || ask->first_token > ask->tokens) {
      return Error::make(Code::kBadInput, "an ask for tokens %llu to %llu",
                         static_cast<unsigned long long>(ask->first_token),
                         static_cast<unsigned long long>(ask->tokens));
    }
  }
  if (const auto* nothing = std::get_if<NothingMessage>(&message))
    CACHALOT_TRY(check(nothing->shape));
  return message;
}

Status check(const InstanceShape& shape) {
  if (shape.tp_size == 0 || shape.pp_size == 0 || shape.tp_size > kMostRanks ||
      shape.pp_size > kMostRanks || shape.ranks() > kMostRanks) {
    return Error::make(Code::kInvalidArgument,
                       "an instance of TP %u and PP %u; expected 1 to %u ranks", shape.tp_size,
                       shape.pp_size, kMostRanks);
  }
  if (!shape.stage_layers.empty() && shape.stage_layers.size() != shape.pp_size) {
    return Error::make(Code::kInvalidArgument, "layers of %zu stages are given; expected %u",
                       shape.stage_layers.size(), shape.pp_size);
  }
  if (!shape.machines.empty() && shape.machines.size() != shape.ranks()) {
    return Error::make(Code::kInvalidArgument, "machines of %zu ranks are given; expected %u",
                       shape.machines.size(), shape.ranks());
  }
  return {};
}

}  // namespace cachalot::transfer
