#include "reference_json.h"

#include <gtest/gtest.h>

#include <string>

namespace cachalot::llama {
namespace {

using nlohmann::json;

PromptReference a_reference() {
  PromptReference reference;
  reference.kv.instance = "llama-1";
  reference.kv.id = {0xfedcba9876543210, 1};
  reference.kv.tokens = 128;
  reference.kv.addresses = {{"tcp:10.0.0.1:7001", "unix:@kv"}};
  reference.identity = {std::string(64, 'a'), "f16/q8_0", 64, std::string(64, '9')};
  reference.last_block = {.low = 5, .high = ~std::uint64_t{0}};
  return reference;
}

json as_json() {
  return json::parse(reference_json(a_reference()).dump());
}

TEST(ReferenceJson, IsReadAsItWasWritten) {
  EXPECT_EQ(as_json()["id"], "fedcba98765432100000000000000001");
  const std::optional<PromptReference> read = reference_of(as_json());
  ASSERT_TRUE(read);
  const PromptReference expected = a_reference();
  EXPECT_EQ(read->kv.instance, expected.kv.instance);
  EXPECT_EQ(read->kv.id, expected.kv.id);
  EXPECT_EQ(read->kv.tokens, expected.kv.tokens);
  EXPECT_EQ(read->kv.addresses, expected.kv.addresses);
  EXPECT_EQ(read->kv.shape, expected.kv.shape);
  EXPECT_EQ(read->identity.model, expected.identity.model);
  EXPECT_EQ(read->identity.kv_types, expected.identity.kv_types);
  EXPECT_EQ(read->identity.block_tokens, expected.identity.block_tokens);
  EXPECT_EQ(read->identity.fingerprint, expected.identity.fingerprint);
  EXPECT_EQ(read->last_block, expected.last_block);
}

TEST(ReferenceJson, OneWithoutAMemberIsNone) {
  const json whole = as_json();
  for (const auto& member : whole.items()) {
    json given = whole;
    given.erase(member.key());
    EXPECT_FALSE(reference_of(given)) << member.key();
    for (const json& other : {json(), json(true), json(-1), json(1e9), json("\n"), json::array(),
                              json::object(), json(std::string(201, 'a'))}) {
      given[member.key()] = other;
      EXPECT_FALSE(reference_of(given)) << member.key() << " " << other;
    }
  }
  for (const json& other : {json(), json("text"), json::array({1}), json(1)})
    EXPECT_FALSE(reference_of(other)) << other;
}

TEST(ReferenceJson, AddressesAreThoseOfOneRankAndAtMostSixteen) {
  json given = as_json();
  given["addresses"] = {json::array({"tcp:a"}), json::array({"tcp:b"})};
  EXPECT_FALSE(reference_of(given));
  given["addresses"] = {json::array()};
  EXPECT_FALSE(reference_of(given));
  given["addresses"] = {json(std::vector<std::string>(17, "tcp:a"))};
  EXPECT_FALSE(reference_of(given));
  given["addresses"] = json::array({json(std::vector<std::string>(16, "tcp:a"))});
  EXPECT_TRUE(reference_of(given));
}

}  // namespace
}  // namespace cachalot::llama
