// A subscriber of KV events: decodes the payloads and holds what they say, for tests.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "block_hash/block_hash.h"
#include "node/events/feed.h"

namespace cachalot::events {

class TestSubscriber {
 public:
  struct Block {
    std::string parent;  // hex; empty: a root
    std::vector<std::uint32_t> tokens;
    std::string topic;
    bool operator==(const Block&) const = default;
  };

  // Of the live stream: numbers have no gaps.
  void hear(const Message& message) {
    if (last_) {
      EXPECT_EQ(message.sequence, *last_ + 1);
    }
    apply(message);
  }
  // Of a replay; duplicates of what was heard are not expected.
  void apply(const Message& message) {
    last_ = message.sequence;
    const nlohmann::json batch = nlohmann::json::from_msgpack(message.payload);
    ASSERT_EQ(batch.size(), 3u);
    EXPECT_TRUE(batch[0].is_number_float());
    EXPECT_TRUE(batch[2].is_null());
    EXPECT_FALSE(batch[1].empty());
    for (const nlohmann::json& event : batch[1]) apply(event, message.topic);
  }

  const std::map<std::string, Block>& blocks() const { return blocks_; }
  std::optional<std::uint64_t> last() const { return last_; }
  int clears() const { return clears_; }

 private:
  static std::string hex_of(const nlohmann::json& hash) {
    EXPECT_TRUE(hash.is_binary());
    std::string text;
    for (const std::uint8_t byte : hash.get_binary()) {
      constexpr char kDigits[] = "0123456789abcdef";
      text += {kDigits[byte >> 4], kDigits[byte & 15]};
    }
    return text;
  }
  void apply(const nlohmann::json& event, const std::string& topic) {
    const auto type = event["type"].get<std::string>();
    if (type == "AllBlocksCleared") {
      ++clears_;
      return blocks_.clear();
    }
    EXPECT_EQ(event["medium"], "CPU");
    EXPECT_EQ(event["locality"], "LOCAL");
    if (type == "BlockRemoved") {
      for (const nlohmann::json& hash : event["block_hashes"])
        EXPECT_EQ(blocks_.erase(hex_of(hash)), 1u) << "removed, and was not there";
      return;
    }
    ASSERT_EQ(type, "BlockStored");
    EXPECT_TRUE(event["lora_id"].is_null() && event["lora_name"].is_null());
    const auto tokens = event["token_ids"].get<std::vector<std::uint32_t>>();
    const auto each = event["block_size"].get<std::size_t>();
    const nlohmann::json& hashes = event["block_hashes"];
    ASSERT_EQ(tokens.size(), each * hashes.size());
    const nlohmann::json& before = event["parent_block_hash"];
    std::string parent = before.is_null() ? "" : hex_of(before);
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      const std::string hash = hex_of(hashes[i]);
      EXPECT_TRUE(parent.empty() || blocks_.count(parent) == 1) << "the parent comes first";
      const auto from = tokens.begin() + static_cast<std::ptrdiff_t>(i * each);
      const Block block{parent, {from, from + static_cast<std::ptrdiff_t>(each)}, topic};
      EXPECT_TRUE(blocks_.emplace(hash, block).second) << "stored, and was there";
      parent = hash;
    }
  }

  std::map<std::string, Block> blocks_;
  std::optional<std::uint64_t> last_;
  int clears_ = 0;
};

}  // namespace cachalot::events
