#include "request.h"

#include <gtest/gtest.h>

#include <string>

#include "answer.h"

namespace cachalot::llama {
namespace {

constexpr const char* kModel = "small";

Request completion(const std::string& body) {
  Request request;
  const auto error = parse_completion(body, kModel, request);
  EXPECT_FALSE(error) << (error ? error->message : "");
  return request;
}

Request chat(const std::string& body) {
  Request request;
  const auto error = parse_chat(body, kModel, request);
  EXPECT_FALSE(error) << (error ? error->message : "");
  return request;
}

// What is wrong with a completion's body.
ApiError wrong(const std::string& body) {
  Request request;
  const auto error = parse_completion(body, kModel, request);
  EXPECT_TRUE(error) << body;
  return error.value_or(ApiError{});
}

ApiError wrong_chat(const std::string& body) {
  Request request;
  const auto error = parse_chat(body, kModel, request);
  EXPECT_TRUE(error) << body;
  return error.value_or(ApiError{});
}

// A completion with one more parameter.
ApiError wrong_value(const std::string& member) {
  return wrong(R"({"prompt": "x", )" + member + "}");
}

void expect_part(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(CompletionRequest, HasOpenAIsDefaults) {
  const Request request = completion(R"({"prompt": "hello"})");
  EXPECT_EQ(std::get<std::string>(request.prompt), "hello");
  EXPECT_EQ(request.max_tokens, 16u);
  EXPECT_FALSE(request.has_own_max_tokens);
  EXPECT_EQ(request.sampling.temperature, 1.0F);
  EXPECT_EQ(request.sampling.top_p, 1.0F);
  EXPECT_EQ(request.sampling.seed, std::nullopt);
  EXPECT_FALSE(request.stream);
}

TEST(CompletionRequest, ReadsWhatIsGiven) {
  const Request request = completion(
      R"({"model": "small", "prompt": "x", "max_tokens": 7, "temperature": 0, "top_p": 0.5,
          "top_k": 40, "seed": -3, "stop": ["a", "b"], "stream": true,
          "stream_options": {"include_usage": true}, "ignore_eos": true, "user": "me"})");
  EXPECT_EQ(request.max_tokens, 7u);
  EXPECT_TRUE(request.has_own_max_tokens);
  EXPECT_EQ(request.sampling.temperature, 0.0F);
  EXPECT_EQ(request.sampling.top_p, 0.5F);
  EXPECT_EQ(request.sampling.top_k, 40);
  EXPECT_TRUE(request.sampling.seed.has_value());
  EXPECT_EQ(request.stops, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(request.stream);
  EXPECT_TRUE(request.include_usage);
  EXPECT_TRUE(request.ignore_eos);
}

TEST(CompletionRequest, TakesNullForAbsent) {
  const Request request = completion(R"({"prompt": "x", "stop": null, "seed": null, "foo": null})");
  EXPECT_TRUE(request.stops.empty());
}

TEST(CompletionRequest, TakesTokensForAPrompt) {
  const Request request = completion(R"({"prompt": [1, 2, 3]})");
  EXPECT_EQ(std::get<std::vector<Token>>(request.prompt), (std::vector<Token>{1, 2, 3}));
  EXPECT_EQ(std::get<std::string>(completion(R"({"prompt": ["x"]})").prompt), "x");
}

TEST(CompletionRequest, SaysWhereTheBodyIsNoJson) {
  expect_part(wrong("{\"prompt\": \"x\"").message, "not JSON");
  expect_part(wrong("").message, "not JSON");
  expect_part(wrong("{\"prompt\": \"\xff\"}").message, "not JSON: error at byte 13");
  expect_part(wrong("[1]").message, "an array of 1, expected an object");
  EXPECT_EQ(wrong("7").status, 400);
  expect_part(wrong(R"({"prompt": "x", "temperature": 1e999})").message, "number out of range");
}

TEST(CompletionRequest, RefusesBodiesThatAreNestedTooDeep) {
  const auto nested = [](std::size_t depth) {
    return R"({"prompt": )" + std::string(depth, '[') + std::string(depth, ']') + "}";
  };
  EXPECT_EQ(wrong(nested(64)).param, "prompt");  // read, and no prompt
  expect_part(wrong(nested(65)).message, "nested more than 64 deep");
  // Before the end is looked for.
  expect_part(wrong(std::string(1'000'000, '[')).message, "nested more than 64 deep");
  expect_part(wrong(R"({"a":)" + std::string(70, '[')).message, "nested more than 64 deep");
}

TEST(CompletionRequest, RefusesPromptsThatAreNone) {
  EXPECT_EQ(wrong("{}").param, "prompt");
  for (const char* prompt :
       {"7", "{}", "[\"a\", \"b\"]", "[1, -1]", "[1, \"a\"]", "[1.5]", "[4294967296]"}) {
    EXPECT_EQ(wrong(R"({"prompt": )" + std::string(prompt) + "}").param, "prompt") << prompt;
  }
}

TEST(CompletionRequest, NamesTheParameterTheValueAndWhatWasExpected) {
  const ApiError error = wrong_value(R"("temperature": -1)");
  EXPECT_EQ(error.param, "temperature");
  EXPECT_EQ(error.message, "temperature is -1, expected a number from 0.0 to 100.0");
  EXPECT_EQ(error.status, 400);
}

TEST(CompletionRequest, RefusesValuesOutOfBounds) {
  const char* const members[] = {
      R"("temperature": "hot")",
      R"("temperature": 1e300)",
      R"("top_p": 1.01)",
      R"("top_p": [])",
      R"("top_k": -1)",
      R"("top_k": 1.5)",
      R"("max_tokens": 0)",
      R"("max_tokens": -5)",
      R"("max_tokens": 1e9)",
      R"("max_tokens": 18446744073709551615)",
      R"("max_tokens": 99999999999999999999)",
      R"("max_tokens": true)",
      R"("seed": 1.5)",
      R"("seed": 9223372036854775808)",
      R"("stream": 1)",
      R"("stream": "true")",
      R"("stop": "")",
      R"("stop": [1])",
      R"("stop": {})",
      R"("stop": [""])",
      R"("model": 7)",
      R"("ignore_eos": 0)",
      R"("stop": ["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"])"};
  for (const char* member : members) {
    const ApiError error = wrong_value(member);
    const std::string text = member;
    EXPECT_EQ(error.param, text.substr(1, text.find('"', 1) - 1)) << error.message;
  }
}

TEST(CompletionRequest, RefusesWhatItDoesNotServe) {
  for (const char* member : {R"("n": 2)", R"("logprobs": 5)", R"("logprobs": 0)", R"("echo": true)",
                             R"("presence_penalty": 0.5)", R"("logit_bias": {"5": 1})",
                             R"("best_of": 3)", R"("suffix": "x")"}) {
    EXPECT_EQ(wrong_value(member).code, "unsupported_value") << member;
  }
  completion(
      R"({"prompt": "x", "n": 1, "echo": false, "presence_penalty": 0.0, "logit_bias": {}})");
}

TEST(CompletionRequest, RefusesParametersItDoesNotKnow) {
  const ApiError error = wrong_value(R"("temprature": 0)");
  EXPECT_EQ(error.code, "unknown_parameter");
  EXPECT_EQ(error.message, "there is no parameter \"temprature\"");
  EXPECT_EQ(wrong_value(R"("messages": [])").code, "unknown_parameter");
}

TEST(CompletionRequest, RefusesAnotherModel) {
  const ApiError error = wrong_value(R"("model": "large")");
  EXPECT_EQ(error.status, 404);
  EXPECT_EQ(error.code, "model_not_found");
  expect_part(error.message, "\"large\", expected \"small\"");
}

TEST(CompletionRequest, RefusesStreamOptionsWithoutAStream) {
  EXPECT_EQ(wrong_value(R"("stream_options": {"include_usage": true})").param, "stream_options");
  EXPECT_EQ(wrong_value(R"("stream": true, "stream_options": {"usage": true})").param,
            "stream_options");
  EXPECT_EQ(wrong_value(R"("stream": true, "stream_options": 3)").param, "stream_options");
}

TEST(CompletionRequest, ReadsTransferParametersAndIgnoresThoseOfOtherEngines) {
  const std::string prompt = R"({"prompt": "x", "kv_transfer_params": )";
  EXPECT_TRUE(completion(prompt + R"({"do_remote_decode": true, "remote_port": 1}})")
                  .kv_transfer.do_remote_decode);
  EXPECT_FALSE(completion(prompt + R"({"do_remote_decode": null}})").kv_transfer.do_remote_decode);
  const KvTransfer strange =
      completion(prompt + R"({"cachalot_reference": {"id": 1}}})").kv_transfer;
  EXPECT_FALSE(strange.reference);
  EXPECT_TRUE(strange.has_unknown_reference);
  EXPECT_EQ(wrong(prompt + "[]}").message, "kv_transfer_params is not an object");
  EXPECT_EQ(wrong(prompt + R"({"do_remote_decode": 1}})").param, "kv_transfer_params");
  EXPECT_EQ(wrong(prompt + R"({"do_remote_decode": true}, "stream": true})").message,
            "kv_transfer_params.do_remote_decode is given with stream: true");
}

TEST(ChatRequest, ReadsTurns) {
  const Request request = chat(
      R"({"messages": [{"role": "developer", "content": "be brief"},
                       {"role": "user", "name": "u", "content": [{"type": "text", "text": "a"},
                                                                {"type": "text", "text": "b"}]}]})");
  const auto& messages = std::get<std::vector<Message>>(request.prompt);
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[0].role, "system");
  EXPECT_EQ(messages[1].content, "ab");
  EXPECT_EQ(request.max_tokens, std::nullopt);
  EXPECT_EQ(chat(R"({"messages": [{"role": "user", "content": ""}], "max_completion_tokens": 9})")
                .max_tokens,
            9u);
}

TEST(ChatRequest, NamesTheMessageThatIsWrong) {
  expect_part(wrong_chat(R"({"messages": [{"role": "user", "content": "x"}, 3]})").message,
              "messages[1]");
  expect_part(wrong_chat(R"({"messages": [{"role": "robot", "content": "x"}]})").message,
              "messages[0].role");
  expect_part(wrong_chat(R"({"messages": [{"role": "user"}]})").message, "messages[0].content");
  expect_part(wrong_chat(R"({"messages": [{"role": "user", "content": "a\u0000b"}]})").message,
              "zero");
  expect_part(
      wrong_chat(R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})").message,
      "messages[0].content is not a text");
  for (const char* messages : {"[]", "{}", "\"x\"", "null"}) {
    EXPECT_EQ(wrong_chat(R"({"messages": )" + std::string(messages) + "}").param, "messages");
  }
}

TEST(ChatRequest, RefusesTools) {
  EXPECT_EQ(wrong_chat(R"({"messages": [{"role": "user", "content": "x"}], "tools": []})").param,
            "tools");
  EXPECT_EQ(wrong_chat(R"({"messages": [{"role": "user", "content": "x"}],
                           "tools": [{"type": "function"}]})")
                .param,
            "tools");
}

TEST(Answer, CountsTokensOfTheCachesAndOfThePool) {
  Usage usage;
  usage.prompt_tokens = 100;
  usage.completion_tokens = 5;
  usage.own_tokens = 10;
  usage.pool_tokens = 64;
  const auto answer = Answer(kModel, true, false).whole("hi", Finish::kLength, usage);
  EXPECT_EQ(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 74);
  EXPECT_EQ(answer["usage"]["prompt_tokens_details"]["pool_tokens"], 64);
  EXPECT_EQ(answer["usage"]["total_tokens"], 105);
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "hi");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
}

TEST(Answer, NamesErrorsAsOpenAIDoes) {
  const auto error = error_json(wrong_value(R"("n": 2)"))["error"];
  EXPECT_EQ(error["type"], "invalid_request_error");
  EXPECT_EQ(error["param"], "n");
  EXPECT_EQ(error["code"], "unsupported_value");
  EXPECT_EQ(error_json(ApiError{})["error"]["code"], nullptr);
}

}  // namespace
}  // namespace cachalot::llama
