//! Rust's schema_registry_converter: `registry-client ORDERS.json`.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;

use prost::Message;
use rskafka::client::ClientBuilder;
use rskafka::client::partition::{Compression, PartitionClient, UnknownTopicHandling};
use rskafka::record::Record;
use schema_registry_converter::async_impl::avro::{AvroDecoder, AvroEncoder};
use schema_registry_converter::async_impl::json::{JsonDecoder, JsonEncoder};
use schema_registry_converter::async_impl::proto_raw::{ProtoRawDecoder, ProtoRawEncoder};
use schema_registry_converter::async_impl::schema_registry::{
    SrSettings, get_all_versions, get_schema_by_id, get_schema_by_subject_and_version, is_compatible_schema,
    post_schema,
};
use schema_registry_converter::schema_registry_common::{
    SchemaType, SubjectNameStrategy, SuppliedReference, SuppliedSchema,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

#[derive(Deserialize)]
struct Given {
    mode: String,
    registry: String,
    bootstrap: String,
    incompatible: String,
    #[serde(default)]
    record: Option<Order>,
    #[serde(default)]
    formats: BTreeMap<String, Texts>,
    #[serde(default)]
    topics: Vec<Topic>,
}

#[derive(Deserialize)]
struct Topic {
    name: String,
    format: String,
}

#[derive(Deserialize)]
struct Texts {
    topic: String,
    line_name: String,
    line: String,
    order: String,
    evolved: String,
    refused: String,
}

#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
struct Line {
    #[prost(string, tag = "1")]
    sku: String,
    #[prost(int32, tag = "2")]
    count: i32,
}

#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
struct Order {
    #[prost(int64, tag = "1")]
    id: i64,
    #[prost(string, tag = "2")]
    note: String,
    #[prost(double, tag = "3")]
    amount: f64,
    #[prost(message, repeated, tag = "4")]
    lines: Vec<Line>,
    #[prost(string, tag = "5")]
    currency: String,
}

async fn feature(name: &str, call: impl Future<Output = Outcome<()>>) {
    let problem = call.await.err().map(|error| error.to_string());
    println!("{}", json!({"feature": name, "problem": problem}));
}

fn check(ok: bool, found: impl std::fmt::Debug) -> Outcome<()> {
    if ok { Ok(()) } else { Err(format!("{found:?}").into()) }
}

/// The library puts the answer's body into its error.
fn refused<T>(answer: Result<T, impl std::fmt::Display>, text: &str) -> Outcome<()> {
    match answer {
        Ok(_) => Err("it was accepted".into()),
        Err(error) => check(error.to_string().contains(text), error.to_string()),
    }
}

fn kind(name: &str) -> SchemaType {
    match name {
        "avro" => SchemaType::Avro,
        "json" => SchemaType::Json,
        _ => SchemaType::Protobuf,
    }
}

async fn work(settings: &SrSettings, given: &Given, name: &str, texts: &Texts) {
    let subject = format!("{}-value", texts.topic);
    let line = format!("{}-line", texts.topic);
    let single = |text: &str| SuppliedSchema::new(None, kind(name), text.to_string());
    let schema = |text: &str| {
        let reference = SuppliedReference::new(texts.line_name.clone(), line.clone(), texts.line.clone());
        single(text).with_references(vec![reference])
    };
    let mut id = 0;
    feature(&format!("{name} register"), async {
        id = post_schema(settings, subject.clone(), schema(&texts.order)).await?.id;
        let again = post_schema(settings, subject.clone(), schema(&texts.order)).await?.id;
        check(again == id, again)
    })
    .await;
    feature(&format!("{name} evolve"), async {
        check(is_compatible_schema(settings, subject.clone(), schema(&texts.evolved)).await?, "incompatible")?;
        id = post_schema(settings, subject.clone(), schema(&texts.evolved)).await?.id;
        let versions = get_all_versions(settings, subject.clone()).await?;
        check(versions == [1, 2], versions)
    })
    .await;
    feature(&format!("{name} refused"), async {
        check(!is_compatible_schema(settings, subject.clone(), schema(&texts.refused)).await?, "compatible")?;
        let answer = post_schema(settings, subject.clone(), schema(&texts.refused)).await;
        refused(answer, &given.incompatible)?;
        refused(post_schema(settings, subject.clone(), single("{")).await, "42201")
    })
    .await;
    feature(&format!("{name} by id"), async {
        let found = get_schema_by_id(id, settings).await?;
        check(found.schema_type == kind(name), &found)?;
        refused(get_schema_by_id(1 << 30, settings).await, "Schema 1073741824 not found")
    })
    .await;
    feature(&format!("{name} references"), async {
        let found = get_schema_by_subject_and_version(settings, &subject, Some(2)).await?;
        check(found.references.len() == 1 && found.references[0].subject == line, &found)
    })
    .await;
    feature(&format!("{name} write"), async {
        // The crate finds a referenced Avro type of the same namespace by its short name alone.
        let evolved = texts.evolved.replace("\"shop.Line\"", "\"Line\"");
        let strategy = SubjectNameStrategy::TopicNameStrategyWithSchema(texts.topic.clone(), false, schema(&evolved));
        let order = given.record.clone().ok_or("no record")?;
        let value = match name {
            "avro" => AvroEncoder::new(settings.clone()).encode_struct(&order, &strategy).await?,
            "json" => JsonEncoder::new(settings.clone()).encode(&serde_json::to_value(&order)?, strategy).await?,
            _ => {
                let encoder = ProtoRawEncoder::new(settings.clone());
                encoder.encode(&order.encode_to_vec(), "shop.Order", strategy).await?
            }
        };
        let record = Record {
            key: None,
            value: Some(value),
            headers: BTreeMap::new(),
            timestamp: chrono::DateTime::UNIX_EPOCH,
        };
        partition(given, &texts.topic).await?.produce(vec![record], Compression::NoCompression).await?;
        Ok(())
    })
    .await;
}

async fn partition(given: &Given, topic: &str) -> Outcome<PartitionClient> {
    let client = ClientBuilder::new(vec![given.bootstrap.clone()]).build().await?;
    Ok(client.partition_client(topic, 0, UnknownTopicHandling::Retry).await?)
}

async fn read(settings: &SrSettings, given: &Given, topic: &Topic) -> Outcome<Value> {
    let client = partition(given, &topic.name).await?;
    let (records, _) = client.fetch_records(0, 1..1_000_000, 30_000).await?;
    let value = records.first().and_then(|record| record.record.value.as_deref());
    let order: Order = match topic.format.as_str() {
        "avro" => apache_avro::from_value(&AvroDecoder::new(settings.clone()).decode(value).await?.value)?,
        "json" => {
            let found = JsonDecoder::new(settings.clone()).decode(value).await?.ok_or("no record")?;
            serde_json::from_value(found.value)?
        }
        _ => {
            let found = ProtoRawDecoder::new(settings.clone()).decode(value).await?.ok_or("no record")?;
            check(*found.full_name == "shop.Order", &found.full_name)?;
            Order::decode(found.bytes.as_slice())?
        }
    };
    Ok(serde_json::to_value(order)?)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let path = std::env::args().nth(1).ok_or("usage: registry-client ORDERS.json")?;
    let given: Given = serde_json::from_str(&std::fs::read_to_string(path)?)?;
    let settings = SrSettings::new(given.registry.clone());
    if given.mode == "write" {
        for (name, texts) in &given.formats {
            work(&settings, &given, name, texts).await;
        }
        return Ok(());
    }
    for topic in &given.topics {
        let mut answer: HashMap<&str, Value> = HashMap::from([("topic", json!(topic.name)), ("problem", Value::Null)]);
        match read(&settings, &given, topic).await {
            Ok(record) => answer.insert("record", record),
            Err(error) => answer.insert("problem", json!(error.to_string())),
        };
        println!("{}", serde_json::to_string(&answer)?);
    }
    Ok(())
}
