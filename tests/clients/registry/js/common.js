// What both programs share: the orders that they are given, their lines of output, and Kafka by kafkajs.
const assert = require("node:assert/strict");
const fs = require("node:fs");
const { Kafka, logLevel } = require("kafkajs");

const given = JSON.parse(fs.readFileSync(process.argv[2], "utf8"));
const kafka = new Kafka({ clientId: given.client, brokers: [given.bootstrap], logLevel: logLevel.NOTHING });

function print(line) {
  console.log(JSON.stringify(line));
}

async function feature(name, call) {
  let problem = null;
  try {
    await call();
  } catch (error) {
    problem = String(error.stack ?? error).split("\n").slice(0, 3).join(" ");
  }
  print({ feature: name, problem });
}

/** `wanted` has of the error what the client tells: `status`, `errorCode`. */
async function refused(call, wanted, text) {
  try {
    await call();
  } catch (error) {
    for (const [key, value] of Object.entries(wanted)) {
      assert.equal(error[key], value, String(error));
    }
    assert.ok(String(error.message).includes(text), String(error));
    return;
  }
  assert.fail("it was accepted");
}

async function send(topic, value) {
  const producer = kafka.producer();
  await producer.connect();
  await producer.send({ topic, acks: -1, messages: [{ value }] });
  await producer.disconnect();
}

/** Returns the value of the first record of each topic, by topic. */
async function receive(topics) {
  const consumer = kafka.consumer({ groupId: given.client });
  await consumer.connect();
  await consumer.subscribe({ topics, fromBeginning: true });
  const found = new Map();
  await new Promise((resolve) => {
    const timer = setTimeout(resolve, 60000);
    consumer.run({
      eachMessage: async ({ topic, message }) => {
        found.set(topic, message.value);
        if (found.size === topics.length) {
          clearTimeout(timer);
          resolve();
        }
      },
    });
  });
  await consumer.disconnect();
  return found;
}

/** Prints what each of the given topics holds. */
async function read(decode) {
  const found = await receive(given.topics.map((topic) => topic.name));
  for (const { name, format } of given.topics) {
    try {
      assert.ok(found.has(name), "no record");
      print({ topic: name, record: await decode(name, format, found.get(name)), problem: null });
    } catch (error) {
      print({ topic: name, record: null, problem: String(error) });
    }
  }
}

/** A record as JSON has it: 64-bit numbers as numbers, without what a library adds. */
function plain(record) {
  return JSON.parse(
    JSON.stringify(record, (key, value) =>
      key.startsWith("$") ? undefined : typeof value === "bigint" ? Number(value) : (value?.toNumber?.() ?? value)
    )
  );
}

module.exports = { assert, feature, given, plain, read, refused, send };
