#include "node/peers/messages.h"

#include <cstring>
#include <utility>

#include "transfer/link/frame.h"

namespace cachalot::node {
namespace {

using transfer::BodyReader;
using transfer::BodyWriter;

enum Kind : std::uint64_t { kFollow = 1, kNews, kGet, kGot, kRefused, kChallenge, kProof };

constexpr std::uint64_t kNewsBytes = sizeof(BlockNews), kWantedBytes = sizeof(WantedBlock);
static_assert(kNewsBytes == 56 && kWantedBytes == 40);

// Blocks as the bytes that they have in memory: plain words, on little-endian machines only, as all of Cachalot.
template <class Block>
void put_blocks(BodyWriter& body, std::span<const Block> blocks) {
  std::vector<Block> plain(blocks.size());
  if (!plain.empty())
    std::memset(static_cast<void*>(plain.data()), 0, plain.size() * sizeof(Block));  // padding, too
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if constexpr (requires { blocks[i].key; }) plain[i].key = blocks[i].key;
    if constexpr (requires { blocks[i].hash; }) plain[i].hash = blocks[i].hash;
    plain[i].parent = blocks[i].parent;
    plain[i].length = blocks[i].length;
  }
  body.bytes(std::as_bytes(std::span(plain)));
}

template <class Block>
std::vector<Block> take_blocks(BodyReader& body, std::size_t most, Status& status) {
  const std::vector<std::byte> bytes = body.bytes(most * sizeof(Block));
  if (bytes.size() % sizeof(Block) != 0)
    status = Error::make(Code::kBadInput, "a list of %zu bytes, expected blocks of %zu",
                         bytes.size(), sizeof(Block));
  std::vector<Block> blocks(bytes.size() / sizeof(Block));
  if (!blocks.empty())
    std::memcpy(static_cast<void*>(blocks.data()), bytes.data(), blocks.size() * sizeof(Block));
  return blocks;
}

struct Encoder {
  BodyWriter body;

  void operator()(const FollowMessage&) { body.word(kFollow); }
  void operator()(const NewsMessage& m) {
    body.word(kNews).word(m.is_anew ? 1 : 0);
    put_blocks<BlockNews>(body, m.blocks);
  }
  void operator()(const GetMessage& m) {
    body.word(kGet).word(m.request).word(m.window).word(m.deadline_ns);
    body.word(m.space.low).word(m.space.high);
    put_blocks<WantedBlock>(body, m.blocks);
  }
  void operator()(const GotMessage& m) {
    body.word(kGot).word(m.request).word(m.blocks.size());
    for (const GotBlock& block : m.blocks) {
      body.bytes(std::as_bytes(std::span(&block.head, 1)));
      body.bytes(std::as_bytes(std::span(block.tokens)));
    }
  }
  void operator()(const RefusedGetMessage& m) {
    body.word(kRefused).word(m.request).error(m.error);
  }
  void operator()(const ChallengeMessage& m) {
    body.word(kChallenge);
    for (const std::uint64_t word : m.nonce) body.word(word);
  }
  void operator()(const ProofMessage& m) {
    body.word(kProof);
    for (const std::uint64_t word : m.proof) body.word(word);
  }
};

GotMessage take_got(BodyReader& body, Status& status) {
  GotMessage m;
  m.request = body.word();
  const std::uint64_t blocks = body.word();
  if (blocks > kMostGetBlocks) {
    status = Error::make(Code::kBadInput, "an answer of %llu blocks, expected at most %zu",
                         static_cast<unsigned long long>(blocks), kMostGetBlocks);
    return m;
  }
  for (std::uint64_t i = 0; i < blocks && body.status(); ++i) {
    GotBlock block;
    const std::vector<std::byte> head = body.bytes(sizeof block.head);
    const std::vector<std::byte> tokens = body.bytes(std::uint64_t{storage::kMaxObjectTokens} * 4);
    if (head.size() != sizeof block.head || tokens.size() % 4 != 0) {
      status = Error::make(Code::kBadInput, "a head of %zu bytes, expected %zu", head.size(),
                           sizeof block.head);
      return m;
    }
    std::memcpy(static_cast<void*>(&block.head), head.data(), head.size());
    block.tokens.resize(tokens.size() / 4);
    if (!tokens.empty()) std::memcpy(block.tokens.data(), tokens.data(), tokens.size());
    m.blocks.push_back(std::move(block));
  }
  return m;
}

}  // namespace

std::vector<std::byte> encode(const PeerMessage& message) {
  Encoder encoder;
  std::visit(encoder, message);
  return encoder.body.take();
}

Result<PeerMessage> decode_peer_message(std::span<const std::byte> bytes) {
  BodyReader body(bytes);
  Status status;
  PeerMessage message;
  switch (const std::uint64_t kind = body.word(); kind) {
    case kFollow:
      message = FollowMessage{};
      break;
    case kNews: {
      NewsMessage m;
      m.is_anew = body.word() != 0;
      m.blocks = take_blocks<BlockNews>(body, kMostNews, status);
      message = std::move(m);
      break;
    }
    case kGet: {
      GetMessage m;
      m.request = body.word();
      m.window = body.word();
      m.deadline_ns = body.word();
      m.space.low = body.word();
      m.space.high = body.word();
      m.blocks = take_blocks<WantedBlock>(body, kMostGetBlocks, status);
      message = std::move(m);
      break;
    }
    case kGot:
      message = take_got(body, status);
      break;
    case kRefused: {
      RefusedGetMessage m;
      m.request = body.word();
      m.error = body.error();
      message = m;
      break;
    }
    case kChallenge: {
      ChallengeMessage m;
      for (std::uint64_t& word : m.nonce) word = body.word();
      message = m;
      break;
    }
    case kProof: {
      ProofMessage m;
      for (std::uint64_t& word : m.proof) word = body.word();
      message = m;
      break;
    }
    default:
      return Error::make(Code::kBadInput, "a message of kind %llu, expected 1 to 7",
                         static_cast<unsigned long long>(kind));
  }
  CACHALOT_TRY(status);
  CACHALOT_TRY(body.end());
  return message;
}

}  // namespace cachalot::node
