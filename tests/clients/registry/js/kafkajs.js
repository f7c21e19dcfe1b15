// @kafkajs/confluent-schema-registry: `node kafkajs.js ORDERS.json`.
const { SchemaRegistry, SchemaType, COMPATIBILITY } = require("@kafkajs/confluent-schema-registry");
const { assert, feature, given, plain, read, refused, send } = require("./common");

const open = () => new SchemaRegistry({ host: given.registry, retry: { retries: 0 } });
const registry = open();

async function work(name, texts) {
  const subject = `${texts.topic}-value`;
  const type = SchemaType[texts.type];
  const references = [{ name: texts.line_name, subject: `${texts.topic}-line`, version: 1 }];
  const schema = (which) => ({ type, schema: texts[which], references });
  let id;
  await feature(`${name} register`, async () => {
    await registry.register({ type, schema: texts.line }, { subject: `${texts.topic}-line` });
    ({ id } = await registry.register(schema("order"), { subject }));
    assert.equal((await registry.register(schema("order"), { subject })).id, id);
  });
  await feature(`${name} evolve`, async () => {
    const first = id;
    ({ id } = await registry.register(schema("evolved"), { subject }));
    assert.notEqual(id, first);
    assert.equal(await registry.getLatestSchemaId(subject), id);
    assert.equal(await registry.getRegistryId(subject, 1), first);
  });
  await feature(`${name} refused`, async () => {
    await refused(() => registry.register(schema("refused"), { subject }), { status: 409 }, given.incompatible);
  });
  await feature(`${name} by id`, async () => {
    assert.ok(await open().getSchema(id));
    // It looks up without references.
    const line = await open().getLatestSchemaId(`${texts.topic}-line`);
    assert.equal(await open().getRegistryIdBySchema(`${texts.topic}-line`, { type, schema: texts.line }), line);
    await refused(() => open().getSchema(2 ** 30), { status: 404 }, "Schema 1073741824 not found");
  });
  await feature(`${name} references`, async () => {
    const other = { type, schema: texts.order, references: [{ ...references[0], version: 7 }] };
    await refused(() => registry.register(other, { subject: `${texts.topic}-none` }), { status: 404 }, "Version 7 not found.");
  });
  await feature(`${name} config`, async () => {
    const other = { subject: `${texts.topic}-full`, compatibility: COMPATIBILITY.FULL };
    await registry.register({ type, schema: texts.line }, other);
    await registry.register({ type, schema: texts.line }, other);
  });
  await feature(`${name} write`, async () => {
    const value = await registry.encode(id, given.record);
    // It leaves out Protobuf's message indexes, which all others read: 0 is the first message.
    const framed = name === "protobuf" ? Buffer.concat([value.subarray(0, 5), Buffer.of(0), value.subarray(5)]) : value;
    await send(texts.topic, framed);
  });
}

async function main() {
  if (given.mode === "read") {
    await read(async (topic, format, value) => {
      const record = plain(await registry.decode(value));
      return { ...record, id: Number(record.id) }; // protobufjs writes 64-bit numbers as text
    });
    return;
  }
  for (const [name, texts] of Object.entries(given.formats)) {
    await work(name, texts);
  }
}

main();
