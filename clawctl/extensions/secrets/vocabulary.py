"""Word lists: words that announce a secret, placeholders for one, and words that announce an id."""

import re


def _words(text: str) -> list[str]:
    return text.split()


# The last word of a name determines the kind of its value. `·` stands for a space within an entry.
_PASSWORD_WORDS = _words("""
password passwords passwd pw passwort passphrase pass_phrase pass-phrase passcode pasword passowrd passwod paswort
parol paroli parolu passwort passworte passord passordet pass pswd pwd passwrd
passw psk authtok kennwort kennwortes zugangscode passe mdp motdepasse contraseña contrasena contrasenya clave claves senha
senhas palavra-passe wachtwoord wachtwoorden hasło haslo hasla parola parolă parole parolei heslo hesla salasana
adgangskode adgangskoden kodeord kodeordet jelszó jelszo
jelszava lozinka geslo lösenord losenord lösenordet losenordet
slaptažodis slaptazodis parool pasahitza şifre sifre şifresi şifrem sifrem şifreniz mật·khẩu mat·khau kata·sandi
kata·laluan sandi пароль пароля паролем пароли паролю парола лозинка κωδικός κωδικος συνθηματικό סיסמה סיסמא הסיסמה
كلمة·المرور كلمة·السر رمز·عبور گذرواژه पासवर्ड รหัสผ่าน
পাসওয়ার্ড পাসওয়ার্ড கடவுச்சொல் సంకేతపదం పాస్‌వర్డ్ పాస్వర్డ్
ಪಾಸ್‌ವರ್ಡ್ ಪಾಸ್ವರ್ಡ್ പാസ്‌വേഡ് പാസ്വേഡ് પાસવર્ડ ਪਾਸਵਰਡ पासवर्ड पासवर्ड පාස්වර්ඩ් මුරපදය လျှို့ဝှက်နံပါတ် စကားဝှက်
ពាក្យសម្ងាត់ ລະຫັດຜ່ານ პაროლი գաղտնաբառ құпиясөз құпия·сөз нууц·үг
сырсөз рамз гасло паролі пароли nenosiri wagwoord
fjalëkalimi fjalekalimi lykilorð lykilord aðgangsorð contrasinal cyfrinair salasõna salasona lozinku lozinkom hesla
şifreyi parolayı palavra·passe pasvorto facal-faire focal·faire
pasfhocal senhas parolul parola·mea лозинку پاسورڈ پسورد
رمز·عبور رمز·ورود الرقم·السري كلمه·السر كلمة·مرور パスワード 暗証番号 パスコード
パスフレーズ 密码 密碼 口令 비밀번호 암호 패스워드 비번
""")
KEY_WORDS = _words("""
secret secrets token tokens credential credentials key
keys auth apikey authkey accesskey secretkey appsecret bearer
schlüssel schluessel geheimnis geheim clé jeton chave llave chiave ключ ключа
токен токена секрет
密钥 密鑰 令牌 キー トークン
シークレット 토큰 키
مفتاح کلید מפתח कुंजी চাবি κλειδί คีย์ գաղտնիք anahtar anahtarı klucz sleutel
nyckel nøgle nøkkel klíč kľúč kulcs avain cheie kunci khóa ключі
""")
ENGLISH = frozenset(
    _words("""
password passwords passwd passphrase pass_phrase pass-phrase passcode pass pswd pwd pw passwrd passw psk mdp passe sandi
""")
)
LONGEST_FIRST = sorted({word.replace("·", " ") for word in _PASSWORD_WORDS}, key=len, reverse=True)
KEYS_LONGEST_FIRST = sorted(KEY_WORDS, key=len, reverse=True)

# Strings searched for in lower-case text. For an ASCII word its start is enough.
ANCHORS = tuple(
    _words("""
pass pasw parol pswd pw psk secret token credential key auth bearer nenosiri wagwoord fjal lykilor contrasin cyfrinair salas
pasvorto passe facal focal pasfhocal kennwort zugangscode mdp
contrase clave senha wachtwoord hasl parol heslo hesla
salasana adgangskode kodeord jelsz lozinka geslo losenord slapta
pasahitza sifre kata sandi laluan mat khau schluessel
geheim jeton chave llave chiave anahtar klucz sleutel nyckel _pat kulcs avain cheie kunci
""")
)
ANCHORS_BEYOND = tuple(
    dict.fromkeys(
        re.sub(r"(?<=.{4}).*", "", word.replace("·", " ")) for word in (*_PASSWORD_WORDS, *KEY_WORDS) if not word.isascii()
    )
)

# Words that are also ordinary words of another language; they need a word boundary before them.
SHORT = frozenset(
    _words("""
pass passe parol clave claves parole sandi geslo parola mdp pwd pw senha heslo passw psk auth key keys рамз гасло anahtar
klucz sleutel nyckel kulcs avain cheie kunci nøgle
""")
)

# Placeholders that occur instead of a secret.
PLACEHOLDERS = frozenset(
    (
        *_words("""
password passwd passphrase pass pwd secret token key apikey
api_key string str text none null nil true false undefined
required optional hidden changeme change_me change-me example placeholder
redacted unknown empty todo tbd yes no bool
int bytes object value default wrong incorrect invalid
correct expired missing weak strong reset protected encrypted
hashed stored saved root admin user username test guest postgres login foo bar dummy sample mypassword yourpassword
secretref not only never always self cls this that kwargs args type number integer boolean any char varchar
optional[str] public private const function
"""),
        *LONGEST_FIRST,
        *KEY_WORDS,
    )
)

# Prefixes of ids that look like keys, and prefixes of keys.
IDS = frozenset(
    _words("""
acct agent app art assistant asst ba batch bitnami blob blobs branch build bundle ca call card cas ch chat chatcmpl
checkpoint chunk cid class client cluster cmpl col
commit component container conv conversation correlation cri cs css
ctr cus customer data deploy deployment dev digest doc docker dp emb embed emotion err error etag event evt exp
experiment fc file fingerprint font fp ft ftjob gen git group hash
id ids image img in index inv invoice item job js jsx
kube layer link log main manifest md5 message model module msg
node nonce object obj order org page part per perm pi pip pkg plan
pm po pod pr price proc process prod product proj project prt pty py que rec ref reference release replicaset req request res
resource resp response result rev revision rs run runs sc
script ses sess session set seti sha sha1 sha256 sha384 sha512
shard si sig snap span src step style sub subnet svc svelte
tag task tbl team test tests thread tmp toolu tool tr trace
track transaction ts txn upload user usr uuid v1 v2 v3
vec vendor ver version vm vol volume vs web worker workspace wrk wrkspc ws
blake2 blake3 md integrity
""")
)
KEY_PARTS = frozenset(_words("ak api apikey auth key keys lic license pat sdk sec secret sk tok token"))

# Key issuers, as they appear in variable names; from the public rule sets.
PROVIDERS = frozenset(
    _words("""
ably adafruit adobe airbrake airtable aiven algolia
alibaba aliyun amplitude anthropic apify appcenter artifactory asana
assemblyai atlassian auth0 aws azure backblaze bamboohr
bandwidth baseten beamer bitbucket bitly bittrex braintree brave
brevo browserstack bugsnag buildkite cartesia cerebras circleci clarifai clearbit clickup clockify cloudconvert
cloudflare cloudinary cloudns cloudsmith codacy codeclimate codecov cohere coinapi coinbase confluent contentful
convertkit coveralls crowdin daily databricks datadog
datarobot deepgram deepl deepseek detectify digitalocean discord
disqus dnkey dnsimple docusign doppler dronaci droneci dropbox duffel dynatrace easypost elastic elasticsearch
elevenlabs etherscan etsy eventbrite exa exoscale facebook
fal fastly figma finicity finnhub firebase fireworks flickr
flutterwave foursquare freshbooks freshdesk fullstory gandi gemini
ghost giphy github gitlab gitter gocardless godaddy
grafana groq hasura helpscout heroku hetzner honeybadger honeycomb hubspot huggingface infracost infura instagram
intercom ionos ipinfo ipstack jenkins jfrog jina jira
jumpcloud kaggle kagi klaviyo kraken kucoin lambdalabs langfuse
langsmith launchdarkly linear linkedin linode liveblocks livekit
logdna loggly logzio looker luma mailchimp mailerlite
mailgun mailjet mandrill mapbox mapquest mattermost maxmind meraki messagebird mistral mixpanel modal monday mux
namecheap nasa nessus netlify newrelic newsapi nexmo ngrok notion npm nytimes okta onesignal openai openrouter
openweather openweathermap opsgenie ovh pagerduty papertrail
paypal perplexity pinecone plaid planetscale playht plivo
porkbun posthog postman postmark prefect privateai pubnub
pulumi pusher quay rapidapi razorpay recaptcha recurly redmine
render replicate resend revai rollbar runpod salesforce
scaleway segment semaphore sendbird sendgrid sendinblue sentry
serpapi shippo shodan shopify signalwire slack smartsheet snowflake snyk sonar sonarcloud sonarqube sourcegraph
sparkpost splunk spotify square squarespace stability statuspage
storyblok strava stripe sumo sumologic supabase tableau
tavily telegram telnyx tencent terraform tiingo todoist
together tomtom travis trello twilio twitch twitter typeform
upcloud uploadcare uptimerobot vastai vercel virustotal vonage voyage vultr wakatime wandb wasabi weaviate webflow
weights wepay wistia wrike yandex yelp youtube zapier zendesk zeplin zerobounce zoho zoom
""")
)
# The last word of a name whose value is not secret, however random it looks.
NAMES_OF_IDS = frozenset(
    _words("""
account artifact base board bucket build channel charge
checksum class commit commits container count cursor customer
database dataset date db deployment digest domain email etag event events file fingerprint format hash head host
hostname id ids sid image import index integrity invoice job
kind label layer length mail md5 message model models module
name names nonce order org organisation organization package page path payment pipeline pkg plan port price product
project pub public publishable ref refs region release
repo repository request response rev revision run runs schema
session sha sha1 sha256 sha512 site size slug snapshot space span subscription table tag team thread time timestamp
title trace transfer type uri url urls user username ver version workspace zone
""")
)
# The last word of a name that mentions a secret but does not hold one.
NO_VALUES = NAMES_OF_IDS | frozenset(
    _words("""
algorithm attempt attempts auth budget bytes callback chars class config confirmation counter default description
endpoint enabled env error expires expiry exp field file
generator handler header help hint in input issuer lifetime
limit link list manager max message method min mode needed not off on only option page param params parser path per
policy prefix prompt provider reset required rotation rule
rules scope scopes service status store strength test tests
text token tokens regex regexp pattern patterns hasher hashers
type types usage used validator vault when algo alias label names role
""")
)
