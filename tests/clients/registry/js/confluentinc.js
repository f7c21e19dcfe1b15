// @confluentinc/schemaregistry: `node confluentinc.js ORDERS.json`.
const { create, createFileRegistry, createMutableRegistry, fromBinary } = require("@bufbuild/protobuf");
const { FileDescriptorSetSchema } = require("@bufbuild/protobuf/wkt");
const sr = require("@confluentinc/schemaregistry");
const { assert, feature, given, plain, read, refused, send } = require("./common");

const open = () => new sr.SchemaRegistryClient({ baseURLs: [given.registry], maxRetries: 0 });
const client = open();
const order = createFileRegistry(
  fromBinary(FileDescriptorSetSchema, Buffer.from(given.descriptors, "base64"))
).getMessage("shop.Order");
const { VALUE } = sr.SerdeType;

async function work(name, texts) {
  const subject = `${texts.topic}-value`;
  const line = `${texts.topic}-line`;
  const schemaType = texts.type;
  const references = [{ name: texts.line_name, subject: line, version: 1 }];
  const schema = (which) => ({ schemaType, schema: texts[which], references });
  let id;
  await feature(`${name} register`, async () => {
    await client.register(line, { schemaType, schema: texts.line }, false);
    id = await client.register(subject, schema("order"), false);
    assert.equal(await open().getId(subject, schema("order"), false), id);
  });
  await feature(`${name} evolve`, async () => {
    assert.equal(await client.testSubjectCompatibility(subject, schema("evolved")), true);
    id = await client.register(subject, schema("evolved"), false);
    assert.deepEqual(await client.getAllVersions(subject), [1, 2]);
    assert.equal((await client.getLatestSchemaMetadata(subject)).id, id);
  });
  await feature(`${name} refused`, async () => {
    assert.equal(await client.testSubjectCompatibility(subject, schema("refused")), false);
    const wanted = { status: 409, errorCode: 40901 };
    await refused(() => client.register(subject, schema("refused"), false), wanted, given.incompatible);
    const invalid = { schemaType, schema: "{" };
    await refused(() => client.register(subject, invalid, false), { status: 422, errorCode: 42201 }, "");
  });
  await feature(`${name} by id`, async () => {
    const found = await open().getBySubjectAndId(subject, id);
    assert.equal(found.schemaType ?? "AVRO", schemaType);
    const missing = { status: 404, errorCode: 40403 };
    await refused(() => client.getBySubjectAndId(subject, 2 ** 30), missing, "Schema 1073741824 not found");
    const { guid } = await open().registerFullResponse(subject, schema("evolved"), false);
    assert.equal((await open().getByGuid(guid)).schema, found.schema);
  });
  await feature(`${name} references`, async () => {
    const found = await open().getSchemaMetadata(subject, 2, false);
    assert.deepEqual(found.references, references);
    const needed = { status: 422, errorCode: 42206 };
    await refused(() => client.deleteSubjectVersion(line, 1, false), needed, "One or more references exist");
  });
  await feature(`${name} config`, async () => {
    await client.updateConfig(subject, { compatibility: "FULL" });
    assert.equal((await client.getConfig(subject)).compatibilityLevel, "FULL");
  });
  await feature(`${name} delete`, async () => {
    const other = `${texts.topic}-deleted`;
    await client.register(other, { schemaType, schema: texts.line }, false);
    assert.deepEqual(await client.deleteSubject(other, false), [1]);
    assert.deepEqual(await client.deleteSubject(other, true), [1]);
    const missing = { status: 404, errorCode: 40401 };
    await refused(() => client.getAllVersions(other), missing, `Subject '${other}' not found.`);
  });
  await feature(`${name} write`, async () => {
    await send(texts.topic, await serialized(name, texts.topic));
  });
}

async function serialized(name, topic) {
  if (name === "protobuf") {
    const registry = createMutableRegistry(order);
    const serializer = new sr.ProtobufSerializer(client, VALUE, { registry, autoRegisterSchemas: true });
    return serializer.serialize(topic, create(order, { ...given.record, id: BigInt(given.record.id) }));
  }
  const conf = { useLatestVersion: true, autoRegisterSchemas: false };
  const serializer = name === "avro" ? new sr.AvroSerializer(client, VALUE, conf) : new sr.JsonSerializer(client, VALUE, conf);
  return serializer.serialize(topic, given.record);
}

const deserializers = {
  avro: new sr.AvroDeserializer(client, VALUE, {}),
  json: new sr.JsonDeserializer(client, VALUE, {}),
  protobuf: new sr.ProtobufDeserializer(client, VALUE, {}),
};

async function main() {
  if (given.mode === "read") {
    await read(async (topic, format, value) => plain(await deserializers[format].deserialize(topic, value)));
    return;
  }
  for (const [name, texts] of Object.entries(given.formats)) {
    await work(name, texts);
  }
}

main();
